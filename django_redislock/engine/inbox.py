"""Receive the grants of waiters.

The waiters of one process, or of one event loop, share an inbox on each server: a list to which
the scripts push a grant. One reader waits for all of them, on a connection that no waiter can take
away from a holder. In asyncio it is a task. In threads, one of the waiters reads for the others.

One heartbeat keeps all waiters of an inbox in their queues. Each heartbeat has a number, the
epoch, which the scripts copy into the grants. So a grant is known to be younger than the heartbeat
with its epoch, without a comparison of clocks.
"""

import asyncio
import builtins
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from itertools import count, islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from .. import clock
from ..backends import AsyncClient, Client, Nodes
from ..backends.cluster import is_redirect
from ..backends.dedicated import aclose, close, dedicated, primary_address
from ..keys import LockKeys
from . import store, transport
from .events import InterruptSafeEvent
from .operations import Batch, Command, Flow

HEARTBEAT_SECONDS = 0.5
"""Seconds between two heartbeats of an inbox."""

POLL_SECONDS = 0.1
"""Seconds between two requests of a waiter whose client has only one connection."""

MAX_LOCKS_PER_CALL = 100
"""More locks in one script call would delay other clients."""

MAX_CHECKED = 1000
"""A heartbeat looks for that many waiters in their queues; the next one for others."""

IDLE_SECONDS = 2.0
"""The task that reads an inbox ends after this time without a waiter."""

FINAL_REPLY_TIMEOUT_SECONDS = 0.5
"""How long the reply to a blocking pop may be late."""

STUCK_SECONDS = 10.0
"""A reader that has not ended a read after this time was interrupted."""

RETRY_SECONDS = 0.05
"""Seconds between an error of the task that reads an inbox and its next attempt."""

GRANT = re.compile(r"(?<!\S)([0-9]{1,18}) ([1-9][0-9]{0,17}) ([0-9]{1,18})(?!\S)")

KNOWN_EPOCHS = 8
"""The number of epochs whose times are kept."""


class Message(NamedTuple):
    """A grant that a waiter received."""

    fence_token: int

    since: float
    """A time before the grant, on the waiter's clock."""


class Waiter:
    """One acquisition that may have to wait."""

    __slots__ = ("inbox", "is_waiting", "keys", "news", "ticket", "token", "wakeup")

    def __init__(self, inbox: "Inbox", keys: LockKeys, token: str) -> None:
        self.inbox = inbox
        self.keys = keys
        self.token = token
        self.ticket = inbox.next_ticket()
        self.is_waiting = False
        self.news: Message | Exception | bool = False
        """What arrived: a grant, an error, or True if the waiter has to ask again."""
        self.wakeup: Any = None

    @property
    def terms(self) -> str:
        """What the script that acquires the lock has to know."""
        return f"{self.inbox.id} {self.ticket} {self.inbox.recent_epoch()}"

    def tell(self, news: Message | Exception | bool) -> None:
        if not isinstance(self.news, Message):
            self.news = news
        if self.wakeup:
            self.wakeup.set()

    def take_news(self) -> Message | None:
        """Return a grant, or None. Raise an error that the reader got."""
        news, self.news = self.news, False
        if isinstance(news, Exception):
            raise news
        return news if isinstance(news, Message) else None

    def leave(self) -> None:
        """Wait no more."""
        self.inbox.leave(self)


class Inbox:
    """The inbox of the waiters of one process or event loop."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self.id = secrets.token_hex(8)
        self._lists = tuple(f"{each}{self.id}" for each in prefixes)
        self._waiters: dict[int, Waiter] = {}
        self._tickets = count(1)
        self._epochs = count(1)
        self._epoch = 0
        self._sent_at: dict[int, float] = {}
        self._heartbeat_due = -math.inf
        self._checked = 0
        self._client: Any = None
        self._shared: Any = None
        self._primary: Any = None

    def next_ticket(self) -> int:
        return next(self._tickets)

    def recent_epoch(self) -> int:
        """Return the epoch for an acquisition that begins now, which is a heartbeat, too."""
        now = clock.now()
        if now > self._sent_at.get(self._epoch, -math.inf) + HEARTBEAT_SECONDS / 2:
            self._new_epoch(now)
        return self._epoch

    def _new_epoch(self, now: float) -> int:
        epoch = next(self._epochs)
        self._sent_at[epoch] = now
        self._sent_at.pop(epoch - KNOWN_EPOCHS, None)
        self._epoch = epoch
        return epoch

    def join(self, keys: LockKeys, token: str) -> Waiter:
        if not self._waiters:
            self._heartbeat_due = clock.now() + HEARTBEAT_SECONDS
        waiter = Waiter(self, keys, token)
        self._waiters[waiter.ticket] = waiter
        return waiter

    def leave(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter.ticket, None)

    def deliver(self, text: str) -> None:
        """Tell the waiters of grants: "ticket fence epoch" of each."""
        for ticket, fence_token, epoch in GRANT.findall(text):
            if waiter := self._waiters.get(int(ticket)):
                since = self._sent_at.get(int(epoch), -math.inf)
                waiter.tell(Message(int(fence_token), since))

    def heartbeat(self) -> Flow[None]:
        """Keep the waiters in their queues, and tell those that are in none to ask again."""
        now = clock.now()
        self._heartbeat_due = now + HEARTBEAT_SECONDS
        waiting = [each for each in list(self._waiters.values()) if each.is_waiting]
        first = self._checked % len(waiting) if waiting else 0
        checked = (waiting[first:] + waiting[:first])[:MAX_CHECKED]
        self._checked = first + len(checked)
        locks: dict[str, list[Waiter]] = {each.keys.lock: [] for each in waiting}
        keys = {each.keys.lock: each.keys for each in waiting}
        for waiter in checked:
            locks[waiter.keys.lock].append(waiter)
        epoch = self._new_epoch(now)
        groups = list(_groups(keys))
        calls = tuple(
            store.heartbeat(
                group,
                self.id,
                epoch,
                [" ".join(waiter.token for waiter in locks[each.lock]) for each in group],
            )
            for group in groups
        )
        if not calls:
            return
        replies = yield Batch(calls, store.REPLY_TIMEOUT_SECONDS)
        for group, reply in zip(groups, replies, strict=True):
            told = [waiter for each in group for waiter in locks[each.lock]]
            for place in reply.split():
                told[int(place)].tell(True)

    def tell_all(self, news: Exception | bool) -> None:
        for waiter in list(self._waiters.values()):
            waiter.tell(news)

    def _pop(self, client: Any, seconds: float) -> tuple[Command, float]:
        """Return the command that waits for a grant, and the limit for its reply."""
        seconds = max(0.002, min(seconds, self._heartbeat_due - clock.now()))
        limit = seconds + FINAL_REPLY_TIMEOUT_SECONDS
        return ("BLPOP", *self._lists, transport.below_timeout(client, seconds)), limit

    def _take_in(self, reply: Any) -> None:
        if isinstance(reply, ResponseError):
            # A server that becomes a replica ends blocking commands by UNBLOCKED.
            if not (is_redirect(reply) or "UNBLOCKED" in str(reply)):
                raise reply
            self.tell_all(True)
        elif reply:
            self.deliver(reply[1].decode(errors="replace"))

    def _client_for(self, shared: Any) -> tuple[Any, Any]:
        """Return the client of the reader, and an earlier one to close, or None."""
        primary, old = primary_address(shared), None
        known = self._shared and self._shared()
        if known is not shared or self._primary != primary:
            old, client = self._client, dedicated(shared)
            # A strong reference to the shared client would keep its inbox alive.
            self._client = None if client is shared else client
            self._shared, self._primary = ref(shared), primary
        return self._client or shared, old

    def _can_block(self, client: Any) -> bool:
        """Return whether a holder finds a connection while the reader blocks one."""
        if self._client:
            return True
        keeps_to_one = client.connection or getattr(client, "single_connection_client", False)
        return not keeps_to_one and int(client.connection_pool.max_connections) > 1


class ThreadInbox(Inbox):
    """The inbox of the threads or greenlets of a process. The first waiter reads for all."""

    def __init__(self, prefixes: Sequence[str], run: Callable[[Client, Flow[None]], None]) -> None:
        super().__init__(prefixes)
        self._run = run
        # A dictionary, because its changes are single steps, which no interrupt divides.
        self._reader: dict[str, tuple[Waiter, int]] = {}
        self._replies_until = math.inf

    def wait(self, shared: Client, waiter: Waiter, seconds: float) -> Message | None:
        deadline = clock.now() + seconds
        waiter.wakeup = waiter.wakeup or InterruptSafeEvent()
        waiter.is_waiting = True
        reads = waiter, threading.get_ident()
        try:
            while not waiter.news and (left := deadline - clock.now()) > 0:
                reader = self._reader.setdefault("reader", reads)
                if reader is reads:
                    self._read(shared, left)
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
        for waiter in list(self._waiters.values()):
            if waiter.is_waiting and not waiter.news:
                waiter.wakeup.set()
                return

    def _read(self, shared: Client, left: float) -> None:
        began = clock.now()
        self._replies_until = began + STUCK_SECONDS
        client, old = self._client_for(shared)
        if old:
            close(old)
        try:
            if began >= self._heartbeat_due:
                self._run(client, self.heartbeat())
            if not self._can_block(client):
                time.sleep(min(left, POLL_SECONDS))
                return self.tell_all(True)
            node = transport.node_for_key(client, self._lists[0])
            pop, limit = self._pop(node, left)
            self._take_in(*transport.call(node, [pop], limit))
        except (ConnectionError, TimeoutError):
            self.tell_all(True)  # the next acquisition shows whether Redis responds
        except ResponseError as error:
            self.tell_all(error)


class LoopInbox(Inbox):
    """The inbox of the tasks of an event loop. A task of its own reads it."""

    def __init__(
        self,
        prefixes: Sequence[str],
        run: Callable[[AsyncClient, Flow[None]], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(prefixes)
        self._run = run
        self.loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._latest_client: Any = None

    async def wait(self, shared: AsyncClient, waiter: Waiter, seconds: float) -> Message | None:
        waiter.wakeup = asyncio.Event()
        waiter.is_waiting = True
        try:
            if not waiter.news:
                if self._task is None:
                    self._start(shared)
                with suppress(builtins.TimeoutError):
                    async with asyncio.timeout(None if seconds == math.inf else seconds):
                        await waiter.wakeup.wait()
            return waiter.take_news()
        finally:
            waiter.is_waiting = False

    def _start(self, shared: AsyncClient) -> None:
        # With an empty context, because it is not part of the caller's request.
        self._task = asyncio.create_task(
            self._read_all(shared), name="redislock-inbox", context=Context()
        )
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        self.tell_all(True)  # whoever still waits starts it again

    async def _read_all(self, shared: AsyncClient) -> None:
        idle_since = clock.now()
        try:
            while clock.now() < idle_since + IDLE_SECONDS:
                await self._read(shared)
                if self._waiters:
                    idle_since = clock.now()
        except asyncio.CancelledError:  # not GeneratorExit: after that nothing can be awaited
            await self._disconnect()
            raise
        await self._disconnect()

    async def _disconnect(self) -> None:
        client, self._client, self._shared = self._client, None, None
        if client:
            await aclose(client)

    async def _read(self, shared: AsyncClient) -> None:
        client, old = self._client_for(shared)
        if old:
            await aclose(old)
        try:
            if clock.now() >= self._heartbeat_due:
                await self._run(client, self.heartbeat())
            if not self._can_block(client):
                await asyncio.sleep(POLL_SECONDS)
                return self.tell_all(True)
            node = transport.node_for_key(client, self._lists[0])
            pop, limit = self._pop(node, HEARTBEAT_SECONDS)
            self._take_in(*await transport.acall(node, [pop], limit))
        except (ConnectionError, TimeoutError):
            self.tell_all(True)
            await asyncio.sleep(RETRY_SECONDS)
        except ResponseError as error:
            self.tell_all(error)
            await asyncio.sleep(RETRY_SECONDS)


_thread_inboxes: WeakKeyDictionary[Any, dict[Any, ThreadInbox]] = WeakKeyDictionary()
_loop_inboxes: WeakKeyDictionary[Any, dict[Any, LoopInbox]] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_thread_inboxes.clear)
os.register_at_fork(after_in_child=_loop_inboxes.clear)


def thread_inbox(
    client: Client, keys: LockKeys, run: Callable[[Client, Flow[None]], None]
) -> ThreadInbox:
    """Return the inbox of the threads of this process for a lock."""
    of_client = _of_client(_thread_inboxes, client)
    # The pid, because uWSGI forks without Python's hooks.
    key = os.getpid(), keys.inbox_group
    return of_client.get(key) or of_client.setdefault(key, ThreadInbox(keys.inbox_group, run))


def loop_inbox(
    client: AsyncClient,
    keys: LockKeys,
    run: Callable[[AsyncClient, Flow[None]], Coroutine[Any, Any, None]],
) -> LoopInbox:
    """Return the inbox of the tasks of the running event loop for a lock."""
    of_client = _of_client(_loop_inboxes, client)
    inbox = of_client.get(keys.inbox_group)
    if inbox is None or inbox.loop is not asyncio.get_running_loop():
        inbox = of_client[keys.inbox_group] = LoopInbox(keys.inbox_group, run)
    return inbox


def _of_client(inboxes: WeakKeyDictionary[Any, dict[Any, Any]], client: Any) -> dict[Any, Any]:
    if isinstance(client, Nodes):  # the reader's client refers to it
        return client.inboxes
    return inboxes.setdefault(client.connection_pool, {})


def _groups(keys: dict[str, LockKeys]) -> Iterable[list[LockKeys]]:
    by_bucket: dict[str, list[LockKeys]] = {}
    for each in keys.values():
        by_bucket.setdefault(each.index, []).append(each)
    for group in by_bucket.values():
        rest = iter(group)
        while part := list(islice(rest, MAX_LOCKS_PER_CALL)):
            yield part
