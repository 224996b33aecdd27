"""Connect in a helper thread."""

import _thread
import threading
import time
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError


def connect(connection: Any, seconds: float | None) -> None:
    """Connect within a time, which covers the look-up of the address and the whole handshake.

    No option of redis-py limits all of that. And no interrupt strikes in the helper thread, so
    Sentinels, whose clients this package shares, are never left with an unread reply.

    Args:
        connection: A connection of redis-py. After an exception it is disconnected.
        seconds: None means as long as the options of the connection allow.

    Raises:
        redis.exceptions.TimeoutError: It took longer.
    """
    errors: list[BaseException] = []
    is_connecting = threading.Lock()
    is_connecting.acquire()

    def work() -> None:
        try:
            connection.connect()
        except BaseException as error:
            errors.append(error)
        finally:
            is_connecting.release()

    try:
        try:
            # An interrupt in `threading.Thread.start()` can become a RuntimeError although the
            # thread runs. Then two threads would connect.
            _thread.start_new_thread(work, ())
        except RuntimeError:  # the interpreter is shutting down, or the system has no thread left
            connection.connect()
            return
        if not _acquire(is_connecting, seconds):
            raise RedisTimeoutError("Timed out while connecting to Redis")
        if errors:
            raise errors.pop()
    except BaseException:
        connection.disconnect()  # which also ends the thread, if it waits for a reply
        raise


def _acquire(lock: threading.Lock, seconds: float | None) -> bool:
    if seconds is None:
        return lock.acquire()
    began = time.monotonic()
    if lock.acquire(timeout=seconds):
        return True
    # If this process was stopped, so was the thread. It gets as long again as the wait was late.
    late = time.monotonic() - began - seconds
    return lock.acquire(timeout=min(max(late, 0), seconds))
