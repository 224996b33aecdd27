"""Read the inboxes: one reader waits for the grants of all waiters of a process or event loop.

It has a connection of its own, which no waiter takes from a holder. In asyncio the reader is a
task. In threads it is one of the waiters, so that a single waiter needs no other thread.
"""

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import (
    AskError,
    ConnectionError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock
from ..backends import AsyncClient, Client
from . import background_task
from .events import InterruptSafeEvent
from .loop_transport import LoopLink
from .operations import Flow, RawCommands, Sleep
from .outages import is_outage, outage_pause
from .thread_transport import ThreadLink
from .timing import (
    FINAL_REPLY_TIMEOUT_SECONDS,
    HEARTBEAT_SECONDS,
    POLL_INTERVAL_SECONDS,
    READER_IDLE_SECONDS,
    READER_RETRY_SECONDS,
    REPLY_TIMEOUT_SECONDS,
    STUCK_READER_SECONDS,
)
from .waiters import ASK_AGAIN, Grant, Inbox, WaitingCaller


def _reader_limit(left: float) -> float:
    """Return how long a reply may take if the reader gives up after `left` seconds."""
    return min(max(left, FINAL_REPLY_TIMEOUT_SECONDS), REPLY_TIMEOUT_SECONDS)


def blocking_read(key: str, timeout: float, limit: float) -> RawCommands:
    """Read one message of an inbox. The server waits for it for `timeout` seconds."""
    return RawCommands((("BLPOP", key, timeout),), limit)


class ReaderInbox(Inbox):
    """An inbox with the connection of its reader.

    Args:
        prefix: The prefix of its keys in Redis.
        run: The runner of its flows: `run()` or `arun()`.
    """

    def __init__(self, prefix: str, run: Callable[..., Any]) -> None:
        super().__init__(prefix)
        self._run = run

    def _read(self, left: float) -> Flow[bool]:
        """Wait for grants, at most until the next heartbeat, and return whether Redis replied.

        Args:
            left: Seconds until the reader gives up.
        """
        gives_up = clock.now() + left
        try:
            if self.failed_reads:
                yield Sleep(min(left, outage_pause(self.failed_reads)))
            if clock.now() >= gives_up:
                return False
            is_due = self.failed_reads or clock.now() >= self.heartbeat_due
            if self.asks_in_turn and not is_due:
                # The reader may be the next to ask. A server that is idle ends a blocking command
                # up to 0.1 s late, so it would delay each of those who ask.
                yield Sleep(min(left, POLL_INTERVAL_SECONDS))
                return True
            if is_due:
                yield from self.heartbeat(_reader_limit(gives_up - clock.now()))
            left = gives_up - clock.now()
            # Before Redis 7.0.8, less than a millisecond counts as 0: no limit.
            seconds = max(0.002, min(left, self.heartbeat_due - clock.now()))
            if self.asks_in_turn:
                seconds = min(seconds, POLL_INTERVAL_SECONDS)
            late = _reader_limit(left - seconds)
            [reply] = yield blocking_read(self.key, seconds, seconds + late)
            if isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply):
                # Another program wrote to the inbox. Grants may be lost with the others.
                yield RawCommands((("DEL", self.key),), late)
                self.tell_all(ASK_AGAIN)
            else:
                self._take_in(reply)
            self.read_succeeded()
            return True
        except RedisError as error:
            if is_outage(error):
                self.read_failed(error)
                if isinstance(error, RedisTimeoutError) and clock.now() >= gives_up:
                    # The time of the caller is up, so it does not ask again.
                    raise
            else:
                # A client that cannot connect gives the same error to the next acquisition.
                self.tell_all(ASK_AGAIN if isinstance(error, ConnectionError) else error)
        return False

    def _take_in(self, reply: Any) -> None:
        if isinstance(reply, list):
            self.deliver(reply[1])
        elif isinstance(reply, AskError | TryAgainError):
            self.tell_all(ASK_AGAIN)  # the next acquisition follows the redirect
        elif isinstance(reply, ResponseError):
            try:
                raise reply
            finally:
                del reply  # see `run()`


class ThreadInbox(ReaderInbox):
    """The inbox of the threads or greenlets of a process. The first waiter reads for all."""

    def __init__(self, prefix: str, run: Callable[..., Any]) -> None:
        super().__init__(prefix, run)
        # The second is for a signal handler that waits in the thread that reads.
        self._link = ThreadLink(size=2)
        # A dictionary, because its changes are single steps, which no interrupt divides.
        self._reader: dict[str, tuple[WaitingCaller, int]] = {}
        self._replies_until = math.inf

    def wait(self, client: Client, waiter: WaitingCaller, seconds: float) -> Grant | None:
        deadline = clock.now() + seconds
        waiter.wakeup = waiter.wakeup or InterruptSafeEvent()
        waiter.is_waiting = True
        reads = waiter, threading.get_ident()
        try:
            while not waiter.news and (left := deadline - clock.now()) > 0:
                reader = self._reader.setdefault("reader", reads)
                if reader is reads:
                    self._replies_until = clock.now() + STUCK_READER_SECONDS
                    self._run(client, self._read(left), self._link)
                elif reader[1] == reads[1] or clock.now() > self._replies_until:
                    # A signal handler waits in the thread of the reader, or an interrupt kept the
                    # reader from ending.
                    self._reader.pop("reader", None)
                else:
                    waiter.wakeup.wait(min(left, HEARTBEAT_SECONDS))
            return waiter.take_news()
        finally:
            waiter.is_waiting = False
            if self._reader.get("reader") is reads:
                self._reader.pop("reader", None)
                self._wake_next()

    def _wake_next(self) -> None:
        for waiter in list(self.waiters.values()):
            if waiter.is_waiting and not waiter.news:
                waiter.wakeup.set()
                return


class LoopInbox(ReaderInbox):
    """The inbox of the tasks of an event loop. A task of its own reads it."""

    def __init__(self, prefix: str, run: Callable[..., Any]) -> None:
        super().__init__(prefix, run)
        self.loop = asyncio.get_running_loop()
        self._link = LoopLink()
        self._task: asyncio.Task[None] | None = None

    async def wait(
        self, client: AsyncClient, waiter: WaitingCaller, seconds: float
    ) -> Grant | None:
        waiter.wakeup = asyncio.Event()
        waiter.is_waiting = True
        try:
            if not waiter.news:
                if self._task is None:
                    self._task = background_task.start(self._read_all(client), "redislock-inbox")
                    self._task.add_done_callback(self._ended)
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if seconds == math.inf else seconds):
                        await waiter.wakeup.wait()
            return waiter.take_news()
        finally:
            waiter.is_waiting = False

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        self.tell_all(ASK_AGAIN)  # a task that still waits starts it again

    async def _read_all(self, client: AsyncClient) -> None:
        idle_since = clock.now()
        try:
            await self._link.end_with_loop()
            while clock.now() < idle_since + READER_IDLE_SECONDS:
                if not await self._run(client, self._read(math.inf), self._link):
                    await asyncio.sleep(READER_RETRY_SECONDS)
                if self.waiters:
                    idle_since = clock.now()
        finally:
            self._link.close()
