"""The rules of a lock in Redis, in plain Python: its holders, its waiters, and the next holder.

A lock has a capacity, which the total weight of its holders does not exceed. Each holder has a
lease. The waiters form a queue in the order of their arrival:

*   Each acquisition, release, cancelled wait, forced release and heartbeat advances the queue:
    waiters at its head are granted the lock as long as they fit. Nobody overtakes a live waiter.
*   The waiters of a process share an inbox, to which grants are pushed, and its heartbeats. A
    waiter of an inbox without a recent heartbeat is skipped when it is first. Until then it keeps
    its position, unless all heartbeats end. A request is a heartbeat, too.
*   A grant lasts for a short time. Repeating the request confirms it: then the lease runs in full.
*   A release replies with the grants of waiters that share the inbox of the caller.
*   Redis does nothing by itself: after a lease has expired, the next request advances the queue.
*   A successor takes over the hold of its predecessor, and overtakes the waiters.
*   A name has one kind for as long as the lock has a holder or a live waiter.

The rules follow the docs and the comments at the top of the scripts, not the code of the scripts.
Times are in milliseconds, except `now_us`. Results have the format of the scripts.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass
class Holder:
    weight: int
    expires: int
    fence: int
    acquired: int
    cooling: bool = False
    """Whether it was released, and stays unavailable for a cooldown."""


@dataclass
class Waiter:
    weight: int
    lease: int
    grant_ttl: int
    kind: str
    capacity: int
    inbox: str


Grant = tuple[str, int]
"""A token and its fencing token."""

MESSAGE_TTL = 2000
"""An inbox is kept for this time after the last grant was pushed to it."""


class Model:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.lose_everything()

    def lose_everything(self) -> None:
        """The server restarts without its data."""
        self.holders: dict[str, Holder] = {}
        self.queue: dict[str, Waiter] = {}  # in order of arrival
        self.alive: dict[str, int] = {}  # inboxes, and until when their heartbeats count
        self.inboxes: dict[str, list[Grant]] = {}
        self._inbox_expires: dict[str, int] = {}
        self.last_fence = 0
        self._kind = ""
        self._capacity = 0
        self._queue_expires = 0

    # Requests

    def acquire(
        self,
        token: str,
        kind: str,
        capacity: int,
        weight: int,
        lease: int,
        grant_ttl: int,
        heartbeat: int,
        inbox: str,
        predecessor: str,
    ) -> int | bytes:
        if self.kind not in (None, kind):
            return str(self.kind).encode()
        mine = self.holders.get(token)
        if mine and mine.cooling:
            return 0
        if mine:
            mine.expires = max(mine.expires, self.now + lease)
            return -mine.fence if predecessor else mine.fence
        self._kind, self._capacity = kind, capacity
        before = self.holders.get(predecessor)
        if before and not before.cooling and before.weight == weight:
            del self.holders[predecessor]
            self.queue.pop(token, None)
            self._enter(token, weight, lease)
            return -self.last_fence
        if not heartbeat and not self._fits(weight):
            self._leave(token)
            return 0
        joins = bool(self.queue) or not self._fits(weight)
        self.queue[token] = Waiter(weight, lease, grant_ttl, kind, capacity, inbox)
        if heartbeat and joins:
            self._beat(inbox, heartbeat)
        self._advance(present=token)
        if token in self.holders:
            return self.holders[token].fence
        if not heartbeat:
            self._leave(token)
        return 0

    def release(self, token: str, at_least: int, *, remembered: bool) -> int:
        """Release a hold or leave the queue.

        Args:
            token: The lock token.
            at_least: The minimum time since the acquisition, in milliseconds.
            remembered: Whether Redis still knows the capacity. It may not after the last lease
                expired. Then the capacity of the first waiter counts.
        """
        mine = self.holders.get(token)
        if not mine:
            self._forget_capacity(remembered)
            self._leave(token)
            return 0
        stays = mine.acquired + at_least
        if mine.cooling:
            return 1
        if stays > self.now:
            mine.cooling, mine.expires = True, stays
            return 1
        del self.holders[token]
        self._advance()
        return 1

    def heartbeat(
        self, inbox: str, lasts: int, tokens: list[str], *, remembered: bool
    ) -> list[str]:
        """Return the tokens that are not in the queue."""
        self._beat(inbox, lasts)
        missing = [token for token in tokens if token not in self.queue]
        self._forget_capacity(remembered)
        self._advance()
        return missing

    def renew(self, token: str, ms: int, mode: Literal["renew", "set"]) -> int:
        mine = self.holders.get(token)
        if not mine or mine.cooling:
            return 0
        ends = {"renew": max(mine.expires, self.now + ms), "set": self.now + ms}
        mine.expires = ends[mode]
        return mine.expires - self.now

    def force(self, chosen: str, *, remembered: bool) -> list[str]:
        self._forget_capacity(remembered)
        gone = [token for token in self.holders if chosen in ("", token)]
        for token in gone:
            del self.holders[token]
        self._advance()
        return gone

    def pop(self, inbox: str) -> Grant | None:
        """Return the oldest grant in an inbox, once."""
        grants = self.inboxes.get(inbox)
        return grants.pop(0) if grants else None

    def pass_time(self, us: int) -> None:
        self.now_us += us
        for token in [token for token, each in self.holders.items() if each.expires <= self.now]:
            del self.holders[token]
        for inbox in [each for each, ends in self._inbox_expires.items() if ends < self.now]:
            del self._inbox_expires[inbox]
            self.inboxes.pop(inbox, None)
        if self._queue_expires < self.now:
            self.queue.clear()

    # The state

    @property
    def now(self) -> int:
        return self.now_us // 1000

    @property
    def kind(self) -> str | None:
        """The kind of its holders. Without a holder, the kind of its first live waiter."""
        if self.holders:
            return self._kind
        return next((self.queue[token].kind for token in self.waiters), None)

    @property
    def used(self) -> int:
        return sum(holder.weight for holder in self.holders.values())

    @property
    def waiters(self) -> list[str]:
        """The tokens of the live waiters, the first one first."""
        return [token for token, waiter in self.queue.items() if self._is_live(waiter)]

    # The queue

    def _beat(self, inbox: str, lasts: int) -> None:
        self.alive[inbox] = self.now + lasts
        if self.queue:
            self._queue_expires = self.now + lasts

    def _leave(self, token: str) -> None:
        if self.queue.pop(token, None):
            self._advance()

    def _forget_capacity(self, remembered: bool) -> None:
        if not remembered:
            self._capacity = 0

    def _advance(self, present: str = "") -> None:
        """Advance the queue. The request is that of `present`, which gets the full lease."""
        while self.queue and (not self._capacity or self.used < self._capacity):
            token, waiter = next(iter(self.queue.items()))
            if token == present or self._is_live(waiter):
                if not self._capacity:
                    self._kind, self._capacity = waiter.kind, waiter.capacity
                if not self._fits(waiter.weight):
                    break
                lasts = waiter.lease if token == present else waiter.grant_ttl
                grant = token, self._enter(token, waiter.weight, lasts)
                if token != present:
                    self.inboxes.setdefault(waiter.inbox, []).append(grant)
                    self._inbox_expires[waiter.inbox] = self.now + MESSAGE_TTL
            del self.queue[token]

    def _enter(self, token: str, weight: int, lasts: int) -> int:
        self.last_fence = max(self.now_us, self.last_fence + 1)
        self.holders[token] = Holder(weight, self.now + lasts, self.last_fence, self.now)
        return self.last_fence

    def _fits(self, weight: int) -> bool:
        return self.used + weight <= self._capacity

    def _is_live(self, waiter: Waiter) -> bool:
        return self.alive.get(waiter.inbox, 0) >= self.now
