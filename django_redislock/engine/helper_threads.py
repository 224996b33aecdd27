"""Connect in a helper thread."""

import threading
import time
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

THREAD_NAME = "redislock-connect"


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

    def work() -> None:
        try:
            connection.connect()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=THREAD_NAME, daemon=True)
    try:
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or the system has no thread left
            connection.connect()
            return
        _join(thread, seconds)
        if errors:
            raise errors.pop()
        if thread.is_alive():
            raise RedisTimeoutError("Timed out while connecting to Redis")
    except BaseException:
        connection.disconnect()  # which also ends the thread, if it waits for a reply
        raise


def _join(thread: threading.Thread, seconds: float | None) -> None:
    began = time.monotonic()
    thread.join(seconds)
    if seconds is not None and thread.is_alive():
        # If this process was stopped, so was the thread. It gets as long again as the wait was
        # late.
        late = time.monotonic() - began - seconds
        thread.join(min(max(late, 0), seconds))
