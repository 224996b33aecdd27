"""The rules of a lock in Redis, in plain Python: its holders, its waiters, and the next holder.

A lock has a capacity, which the total weight of its holders does not exceed. Each holder has a
lease. The waiters form a queue in the order of their arrival:

*   Each acquisition, release, cancelled wait and forced release advances the queue: waiters at its
    head are granted the lock as long as they fit. Nobody overtakes a live waiter.
*   A waiter sends heartbeats by repeating its request. A waiter without a recent heartbeat is
    skipped when it is first. Until then it keeps its position, unless all heartbeats end.
*   A grant lasts for a short time. Repeating the request confirms it: then the lease runs in full.
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
    alive: int
    """Until when its heartbeat counts, in milliseconds."""


@dataclass
class Grant:
    fence: int
    expires: int


class Model:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.lose_everything()

    def lose_everything(self) -> None:
        """The server restarts without its data."""
        self.holders: dict[str, Holder] = {}
        self.queue: dict[str, Waiter] = {}  # in order of arrival
        self.grants: dict[str, Grant] = {}
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
        alive: int,
        predecessor: str,
    ) -> int | bytes:
        if self.kind not in (None, kind):
            return str(self.kind).encode()
        mine = self.holders.get(token)
        if mine and mine.cooling:
            return 0
        if mine:
            mine.expires = max(mine.expires, self.now + lease)
            self.grants.pop(token, None)
            return mine.fence
        self._kind, self._capacity = kind, capacity
        before = self.holders.get(predecessor)
        if before and not before.cooling and before.weight == weight:
            del self.holders[predecessor]
            self.grants.pop(predecessor, None)
            self.queue.pop(token, None)
            self._enter(token, Waiter(weight, lease, grant_ttl, kind, self.now), lease)
            return -self.last_fence
        if not alive and not self._fits(weight):
            self._leave(token)
            return 0
        self._queue(token, Waiter(weight, lease, grant_ttl, kind, self.now + alive))
        self._advance(present=token)
        if token in self.holders:
            return self.holders[token].fence
        if not alive:
            self._leave(token)
        return 0

    def release(self, token: str, at_least: int, *, remembered: bool) -> int:
        """Release a hold or leave the queue.

        Args:
            token: The lock token.
            at_least: The minimum time since the acquisition, in milliseconds.
            remembered: Whether Redis still knows the capacity. It may not after the last lease
                expired. Then only the next request advances the queue.
        """
        mine = self.holders.get(token)
        if not mine:
            self._leave(token, moves=remembered)
            return 0
        stays = mine.acquired + at_least
        if mine.cooling:
            return 1
        self.grants.pop(token, None)
        if stays > self.now:
            mine.cooling, mine.expires = True, stays
            return 1
        del self.holders[token]
        self._advance()
        return 1

    def renew(self, token: str, ms: int, mode: Literal["renew", "set"]) -> int:
        mine = self.holders.get(token)
        if not mine or mine.cooling:
            return 0
        ends = {"renew": max(mine.expires, self.now + ms), "set": self.now + ms}
        mine.expires = ends[mode]
        return mine.expires - self.now

    def force(self, chosen: str) -> list[str]:
        gone = [token for token in self.holders if chosen in ("", token)]
        for token in gone:
            del self.holders[token]
            self.grants.pop(token, None)
        if gone:
            self._advance()
        return gone

    def pop(self, token: str) -> str | None:
        """Return the grant of `token` once."""
        grant = self.grants.pop(token, None)
        return str(grant.fence) if grant else None

    def pass_time(self, us: int) -> None:
        self.now_us += us
        for token in [token for token, each in self.holders.items() if each.expires <= self.now]:
            del self.holders[token]
        for token in [token for token, each in self.grants.items() if each.expires <= self.now]:
            del self.grants[token]
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

    def _queue(self, token: str, waiter: Waiter) -> None:
        self.queue[token] = waiter  # a waiter that is in it keeps its position
        self._queue_expires = max(self._queue_expires, waiter.alive)

    def _leave(self, token: str, *, moves: bool = True) -> None:
        if self.queue.pop(token, None) and moves:
            self._advance()

    def _advance(self, present: str = "") -> None:
        """Advance the queue. `present` sent the request, so it gets the full lease at once."""
        while self.queue and self.used < self._capacity:
            token, waiter = next(iter(self.queue.items()))
            if self._is_live(waiter) and not self._fits(waiter.weight):
                return
            del self.queue[token]
            if self._is_live(waiter):
                self._enter(token, waiter, waiter.lease if token == present else waiter.grant_ttl)
                if token != present:
                    self.grants[token] = Grant(self.last_fence, self.now + waiter.grant_ttl)

    def _enter(self, token: str, waiter: Waiter, lasts: int) -> None:
        self.last_fence = max(self.now_us, self.last_fence + 1)
        self.holders[token] = Holder(waiter.weight, self.now + lasts, self.last_fence, self.now)

    def _fits(self, weight: int) -> bool:
        return self.used + weight <= self._capacity

    def _is_live(self, waiter: Waiter) -> bool:
        return waiter.alive >= self.now
