"""What a lock in Redis promises, in plain Python: who holds it, who waits, who is next.

A lock has a capacity; those who hold it weigh no more than that together. Each holds it for
the length of a lease. The others stand in a queue, in the order in which they came:

*   Whoever asks, lets go, gives up or is forced out brings the queue to move: from its head
    on, all enter who fit in. Nobody enters past somebody who waits and shows life.
*   Who waits shows life by asking again. Who did not is passed over when its turn comes; until
    then it may come back to its place, unless nobody showed any life meanwhile.
*   A turn is worth a short claim. To ask again confirms it: the lease then runs in full.
*   Redis does nothing by itself: when a lease runs out, the next one enters as somebody asks.
*   Who comes as the heir of a holder takes its place, past those who wait.
*   A name is of one kind for as long as anybody holds it or, showing life, waits for it.

Written from what the docs and the heads of the scripts say, not from the scripts. Times are
in ms, but for `now_us`; answers are as the scripts give them.
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
    """Released, and kept for its least time."""


@dataclass
class Waiter:
    weight: int
    lease: int
    claim: int
    kind: str
    alive: int
    """Until when it counts as alive."""


@dataclass
class Grant:
    fence: int
    expires: int


class Model:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.lose_everything()

    def lose_everything(self) -> None:
        """The server was restarted, empty."""
        self.holders: dict[str, Holder] = {}
        self.queue: dict[str, Waiter] = {}  # in order of arrival
        self.grants: dict[str, Grant] = {}
        self.last_fence = 0
        self._kind = ""
        self._capacity = 0
        self._queue_expires = 0

    # What is asked of it

    def acquire(
        self,
        token: str,
        kind: str,
        capacity: int,
        weight: int,
        lease: int,
        claim: int,
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
            self._enter(token, Waiter(weight, lease, claim, kind, self.now), lease)
            return -self.last_fence
        if not alive and not self._fits(weight):
            self._leave(token)
            return 0
        self._queue(token, Waiter(weight, lease, claim, kind, self.now + alive))
        self._give_turns(present=token)
        if token in self.holders:
            return self.holders[token].fence
        if not alive:
            self._leave(token)
        return 0

    def release(self, token: str, at_least: int, *, remembered: bool) -> int:
        """`remembered`: whether Redis still knows the capacity. Once the last lease ran out it
        may not, and then who gives up leaves it to the next who asks to move the queue."""
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
        self._give_turns()
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
            self._give_turns()
        return gone

    def pop(self, token: str) -> str | None:
        """The turn that was given to `token`, if it did not take it yet."""
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

    # What is seen of it

    @property
    def now(self) -> int:
        return self.now_us // 1000

    @property
    def kind(self) -> str | None:
        """What it is taken as, by those who hold it or else by those who wait."""
        if self.holders:
            return self._kind
        return next((self.queue[token].kind for token in self.waiters), None)

    @property
    def used(self) -> int:
        return sum(holder.weight for holder in self.holders.values())

    @property
    def waiters(self) -> list[str]:
        """Who waits and shows life, first to last."""
        return [token for token, waiter in self.queue.items() if self._lives(waiter)]

    # How turns are taken

    def _queue(self, token: str, waiter: Waiter) -> None:
        self.queue[token] = waiter  # who stands there already keeps its place
        self._queue_expires = max(self._queue_expires, waiter.alive)

    def _leave(self, token: str, *, moves: bool = True) -> None:
        if self.queue.pop(token, None) and moves:
            self._give_turns()

    def _give_turns(self, present: str = "") -> None:
        """`present` is here to take a full lease; all others get a claim."""
        while self.queue and self.used < self._capacity:
            token, waiter = next(iter(self.queue.items()))
            if self._lives(waiter) and not self._fits(waiter.weight):
                return
            del self.queue[token]
            if self._lives(waiter):
                self._enter(token, waiter, waiter.lease if token == present else waiter.claim)
                if token != present:
                    self.grants[token] = Grant(self.last_fence, self.now + waiter.claim)

    def _enter(self, token: str, waiter: Waiter, lasts: int) -> None:
        self.last_fence = max(self.now_us, self.last_fence + 1)
        self.holders[token] = Holder(waiter.weight, self.now + lasts, self.last_fence, self.now)

    def _fits(self, weight: int) -> bool:
        return self.used + weight <= self._capacity

    def _lives(self, waiter: Waiter) -> bool:
        return waiter.alive >= self.now
