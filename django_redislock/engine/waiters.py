"""The callers of one process or event loop that wait, and their inbox.

The reader of an inbox is in `inbox`.
"""

import math
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, NamedTuple

from .. import clock
from ..keys import LockKeys
from . import store
from .operations import Batch, Flow
from .outages import log_outage, outage_pause
from .parsing import text, valid_reply
from .timing import (
    HEARTBEAT_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_WAITERS_PER_HEARTBEAT,
    REPLY_TIMEOUT_SECONDS,
)

ASK_AGAIN: Final = "ask again"
"""The news that a waiter has to send its request again."""


class Grant(NamedTuple):
    """A grant that a waiter received."""

    fence_token: int

    since: float
    """A time before the grant, on the waiter's clock."""


News = Grant | Exception | Literal["ask again"]


@dataclass(eq=False, slots=True)
class WaitingCaller:
    """One acquisition that may have to wait. `Inbox.join` makes it."""

    inbox: "Inbox"
    keys: LockKeys
    token: str
    ticket: int

    rides_outages: bool = False
    """Whether it continues to wait while the server is away."""

    failures: int = 0
    """How many of its requests in a row failed because the server was away."""

    is_waiting: bool = False
    """Whether it waits for news. Only then heartbeats include it."""

    news: News | None = None
    """What arrived last, if the waiter has not taken it so far."""

    wakeup: Any = None
    """An event that is set if there is news."""

    def address(self, now: float) -> str:
        """Return where a grant is sent: the inbox, the ticket and the epoch."""
        return f"{self.inbox.id} {self.ticket} {int(now * 1000)}"

    def tell(self, news: News) -> None:
        if not isinstance(self.news, Grant):
            self.news = news
        if self.wakeup:
            self.wakeup.set()

    def take_news(self) -> Grant | None:
        """Return a grant, or None. Raise an error that the reader got."""
        news, self.news = self.news, None
        if isinstance(news, Exception):
            try:
                raise news
            finally:
                del news  # see `run()` of the runners
        return news if isinstance(news, Grant) else None


class Inbox:
    """The inbox of the waiters of one process, or of one event loop, for their grants.

    One heartbeat keeps all waiters of an inbox in their queues. Heartbeats, and requests that
    acquire, carry their epoch: the time (ms) at which they were sent, on the waiter's clock. The
    scripts copy the last epoch into a grant. So a grant is known to be younger than its epoch,
    without a comparison of clocks.

    Args:
        prefix: The prefix of its keys in Redis.
    """

    def __init__(self, prefix: str) -> None:
        self.id = os.urandom(8).hex()
        self.key = f"{prefix}{self.id}"
        self.waiters: dict[int, WaitingCaller] = {}
        self.heartbeat_due = -math.inf
        self.failed_reads = 0
        self._in_turn: deque[WaitingCaller] = deque()
        self.turn: WaitingCaller | None = None
        """The waiter that asks, while waiters ask one after the other."""
        self._turn_ends = -math.inf
        self.outage: dict[str, object] = {}
        """A mark from the first error of an outage until its end. A dictionary, because its
        changes are single steps, which no other thread divides."""
        self._tickets = count(1)
        self._checked = 0

    def join(self, keys: LockKeys, token: str) -> WaitingCaller:
        """Return a new waiter. It stays in `waiters` until it is removed."""
        if not self.waiters:  # its request is a heartbeat, too
            self.heartbeat_due = clock.now() + HEARTBEAT_SECONDS
            if self.outage or self.failed_reads:  # of an earlier wait
                self.read_succeeded()
        waiter = WaitingCaller(self, keys, token, next(self._tickets))
        self.waiters[waiter.ticket] = waiter
        return waiter

    def wait(self, client: Any, waiter: WaitingCaller, seconds: float) -> Any:
        """Wait until a waiter has news, and return a grant, or None if it has to ask again."""
        raise NotImplementedError

    def deliver(self, message: bytes) -> None:
        """Tell a waiter of its grant: "ticket fence epoch", where the epoch is in ms."""
        parts = message[:MAX_MESSAGE_BYTES].split()
        if not (len(parts) == 3 and all(map(bytes.isdigit, parts))):
            return  # another program wrote it
        ticket, fence_token, epoch = map(int, parts)
        waiter = self.waiters.get(ticket)
        if waiter and fence_token:
            waiter.tell(Grant(fence_token, epoch / 1000))

    def tell_all(self, news: News) -> None:
        """Tell all waiters of an error, or to ask again."""
        for waiter in list(self.waiters.values()):
            waiter.tell(news)

    # An outage. While the server is away, only the reader tries to reach it, because thousands may
    # wait, and each attempt to connect costs. The first heartbeat that succeeds finds the waiters
    # that have to ask: Redis has lost the queue, has not queued them, or has made them holders.
    # They ask one after the other, in their order.

    def request_failed(self, waiter: WaitingCaller, error: Exception) -> None:
        """Have a waiter ask again a little later, unless a heartbeat finds it in its queue."""
        waiter.failures += 1
        due = clock.now() + outage_pause(waiter.failures)
        self.heartbeat_due = min(self.heartbeat_due, due)
        self._stop_turns()
        self._log_outage(waiter, error)

    def read_failed(self, error: Exception) -> None:
        """Have those ask again that do not wait for the end of an outage."""
        self.failed_reads += 1
        self._checked = 0  # the next heartbeat begins with those that wait the longest
        self._stop_turns()
        for waiter in list(self.waiters.values()):
            if not waiter.rides_outages:
                waiter.tell(ASK_AGAIN)  # its request shows whether Redis responds
            elif waiter.is_waiting:
                self._log_outage(waiter, error)

    def read_succeeded(self) -> None:
        self.failed_reads = 0
        if self.outage and not any(each.failures for each in list(self.waiters.values())):
            self.outage.clear()

    @property
    def asks_in_turn(self) -> bool:
        """Whether waiters ask again, each after the reply to the one before."""
        return clock.now() < self._turn_ends

    def _next_turn(self) -> None:
        with suppress(IndexError):
            while True:
                waiter = self._in_turn.popleft()
                self.turn, self._turn_ends = waiter, clock.now() + REPLY_TIMEOUT_SECONDS
                waiter.tell(ASK_AGAIN)
                if waiter.ticket in self.waiters:  # else it has left, perhaps at this moment
                    return
        self.turn, self._turn_ends = None, -math.inf

    def _stop_turns(self) -> None:
        self._in_turn.clear()
        self._next_turn()

    def end_turn(self, waiter: WaitingCaller) -> None:
        """Let the next waiter ask, if it was the turn of this one."""
        if self.turn is waiter:
            self._next_turn()

    def _log_outage(self, waiter: WaitingCaller, error: Exception) -> None:
        mark = object()  # not the error, whose traceback would keep a lock alive
        if self.outage.setdefault("mark", mark) is mark:  # no other thread was first
            log_outage(waiter.keys.name, error, len(self.waiters))

    def heartbeat(self, reply_timeout: float = REPLY_TIMEOUT_SECONDS) -> Flow[None]:
        """Keep the waiters in their queues, and tell those that are in none to ask again."""
        now = clock.now()
        self.heartbeat_due = now + HEARTBEAT_SECONDS
        waiting = [each for each in list(self.waiters.values()) if each.is_waiting]
        if not waiting:
            return
        checked: list[WaitingCaller] = []
        if not self.asks_in_turn:  # else those found here would ask before others that are to ask
            first = self._checked % len(waiting)
            checked = (waiting[first:] + waiting[:first])[:MAX_WAITERS_PER_HEARTBEAT]
            self._checked = first + len(checked)
        tokens: dict[LockKeys, list[str]] = {each.keys: [] for each in waiting}
        for waiter in checked:
            tokens[waiter.keys].append(waiter.token)
        calls = []
        for group in store.in_groups(list(tokens)):
            by_lock = [tokens[lock] for lock in group]
            calls.append(store.heartbeat(group, self.id, int(now * 1000), by_lock))
        replies = yield Batch(tuple(calls), reply_timeout)
        with valid_reply():
            missing = set(" ".join(map(text, replies)).split())
        for waiter in checked:
            if waiter.token not in missing:
                waiter.failures = 0
        to_ask = [waiter for waiter in checked if waiter.token in missing]
        if to_ask:
            self._in_turn = deque(sorted(to_ask, key=lambda each: each.ticket))
            self._next_turn()
