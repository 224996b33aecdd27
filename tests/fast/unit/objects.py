"""What lock objects promise to those who share them, in plain Python, and actors to use them.

An actor that acquires a lock has a hold on it, and may have more where it is reentrant: an
object keeps the holds of each actor on a stack. A hold is on one lease, or on several of which
a number must last. A lease is one holding in Redis, and lasts as long as any hold is on it;
who enters again has a hold on the lease that it has, through whichever object it got it.

Whether a lease is still there Redis knows at once, and its actor only when it next asks: it is
`lost` from then on. A hold is lost when too few of its leases are left, and its object is told.

Nothing waits, and no lease is so short that it could run out meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from django_redislock import LockError, LockLost, LockNotOwnedError
from django_redislock.lock_types import BaseLock

Answer = bool | type[LockError] | None


class Actor:
    """A thread that does what it is told, one thing at a time, until it is told to end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._orders: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._outcomes: SimpleQueue[Any] = SimpleQueue()
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def __repr__(self) -> str:
        return self.name[0]  # whoever came in its place

    def does(self, order: Callable[[], Any]) -> Any:
        """What it answers, or the class of the `LockError` that it raises."""
        self._orders.put(order)
        found = self._outcomes.get(timeout=30)
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        self._orders.put(lambda: StopIteration)
        self.thread.join()

    def _run(self) -> None:
        # The order and its traceback are gone before the outcome is told: they hold the lock.
        while (found := _obey(self._orders.get())) is not StopIteration:
            self._outcomes.put(found)


def _obey(order: Callable[[], Any]) -> Any:
    try:
        return outcome(order)
    except Exception as error:
        return error.with_traceback(None)


def outcome(order: Callable[[], Any]) -> Any:
    try:
        return order()
    except LockError as error:
        return type(error)


class Place(NamedTuple):
    alias: str
    name: str

    def __str__(self) -> str:
        return f"{self.name!r} at {self.alias}"


@dataclass(eq=False)
class Lease:
    place: Place
    actor: Actor
    kind: str
    weight: int
    renewed: bool
    fence: int = 0
    """As Redis lists it; 0 until it did."""

    lost: bool = False
    holds: "list[Hold]" = field(default_factory=list)


@dataclass(eq=False)
class Hold:
    lock: "Lock"
    leases: list[Lease]

    def __post_init__(self) -> None:
        for lease in self.leases:
            lease.holds.append(self)

    @property
    def lost(self) -> bool:
        return sum(not lease.lost for lease in self.leases) < self.lock.needed

    @property
    def fences(self) -> dict[str, int]:
        return {lease.place.name: lease.fence for lease in reversed(self.leases)}


class Lock:
    """A lock object, and what is held through it."""

    def __init__(self, places: list[Place], like: BaseLock) -> None:
        self.places = places
        self.kind = like.kind
        self.needed = len(places) // 2 + 1 if self.kind == "quorum" else len(places)
        self.capacity = like.capacity
        self.weight = like.weight
        self.reentrant = like.reentrant
        self.renewed = like.auto_renewal
        self.stacks: dict[Actor, list[Hold]] = {}
        self.told = 0
        """How often it was told that it is lost."""

    def mine(self, actor: Actor) -> Hold | None:
        stack = self.stacks.get(actor)
        return stack[-1] if stack else None

    def known(self, actor: Actor) -> Hold | None:
        """Who has none may look at another's, if only one has any."""
        if actor in self.stacks or len(self.stacks) != 1:
            return self.mine(actor)
        return next(iter(self.stacks.values()))[-1]

    def lost(self, actor: Actor) -> bool:
        """Who knows of none is told whether there is any that is lost."""
        known = self.known(actor)
        return any(hold.lost for hold in ([known] if known else self.all_holds()))

    def all_holds(self) -> list[Hold]:
        return [hold for stack in self.stacks.values() for hold in stack]


class Model:
    def __init__(self) -> None:
        self.redis: dict[Place, list[Lease]] = {}
        """Who is in, the earliest first."""
        self.leases: list[Lease] = []
        """Those that actors have holds on, whether they are in or not, the oldest first."""

    # What is done through an object

    def acquire(self, lock: Lock, actor: Actor) -> Answer:
        take = self._take_majority if lock.kind == "quorum" else self._take_all
        leases = take(lock, actor)
        if not isinstance(leases, list):
            return leases
        for lease in leases:
            if not lease.holds:
                self.leases.append(lease)
                self.redis.setdefault(lease.place, []).append(lease)
        lock.stacks.setdefault(actor, []).append(Hold(lock, leases))
        if len(lock.stacks) > 1:
            self._forget_the_dead(lock)
        return True

    def release(self, lock: Lock, hold: Hold | None) -> Answer:
        if hold is None:
            return LockNotOwnedError
        self._pop(lock, hold)
        last = [lease for lease in hold.leases if lease.holds == [hold]]
        for lease in hold.leases:
            if lease not in last:
                lease.holds.remove(hold)
        for lease in last:
            self.leases.remove(lease)
            if not self._goes(lease):
                self._lose(lease)
        return LockLost if hold.lost else None

    def extend(self, lock: Lock, actor: Actor) -> Answer:
        held = self.assert_held(lock, actor)
        hold = lock.mine(actor)
        if held or hold is None:
            return held
        for lease in hold.leases:
            if not self.is_in(lease):
                self._lose(lease)
        return LockLost if hold.lost else True

    def owned(self, lock: Lock, actor: Actor) -> bool:
        hold = lock.mine(actor)
        return hold is not None and sum(map(self.is_in, hold.leases)) >= lock.needed

    def locked(self, lock: Lock) -> bool:
        if lock.kind != "quorum":
            return any(self.at(place) for place in lock.places)
        fences = Counter(lease.fence for place in lock.places for lease in self.at(place))
        return max(fences.values(), default=0) >= lock.needed

    def assert_held(self, lock: Lock, actor: Actor) -> Answer:
        hold = lock.mine(actor)
        if hold is None:
            return LockNotOwnedError
        return LockLost if hold.lost else None

    def assert_held_at(self, place: Place, actor: Actor) -> Answer:
        mine = self._of(actor, place)
        if not mine:
            return LockNotOwnedError
        return LockLost if all(lease.lost for lease in mine) else None

    # What befalls them

    def force(self, place: Place, fence: int | None = None) -> int:
        gone = [each for each in self.at(place) if fence in (None, each.fence)]
        for lease in gone:
            self._goes(lease)
        return len(gone)

    def renew(self, alias: str) -> None:
        """The renewal comes round at one server: what nobody can release, or is left of a lost
        hold, it does not ask for."""
        wanted = [
            lease
            for lease in self.leases
            if lease.place.alias == alias
            and lease.renewed
            and not lease.lost
            and lease.actor.thread.is_alive()
            and not all(hold.lost for hold in lease.holds)
        ]
        for lease in wanted:
            if not self.is_in(lease):
                self._lose(lease)

    def drop(self, lock: Lock) -> None:
        """Nobody has the object any more: what was held through it is left to run out."""
        self._forget(lock, list(lock.stacks))

    # How

    def at(self, place: Place) -> Sequence[Lease]:
        return self.redis.get(place, ())

    def is_in(self, lease: Lease) -> bool:
        return lease in self.at(lease.place)

    def _take_all(self, lock: Lock, actor: Actor) -> list[Lease] | Answer:
        leases = []
        for place in lock.places:
            lease = self._entered(lock, actor, place)
            fits = lease or self._fits(lock, place)
            if fits in (False, LockError):
                return fits
            leases.append(lease or _lease(lock, actor, place))
        return leases

    def _take_majority(self, lock: Lock, actor: Actor) -> list[Lease] | Answer:
        """Who is kept waiting at the first server asks no other; and none may refuse its kind."""
        entered = self._entered_together(lock, actor)
        if len(entered) >= lock.needed:
            return entered
        fits = [self._fits(lock, place) for place in lock.places]
        if fits[0] is False:
            return False
        if LockError in fits:
            return LockError
        granted = [place for place, fit in zip(lock.places, fits, strict=True) if fit]
        leases = [_lease(lock, actor, place) for place in granted]
        return leases if len(leases) >= lock.needed else False

    def _entered_together(self, lock: Lock, actor: Actor) -> list[Lease]:
        """The most that were acquired together, and so have one fencing token; else the latest."""
        fit = [lease for place in lock.places for lease in self._fit(lock, actor, place)]
        fences = {lease.fence for lease in fit}
        together = ([each for each in fit if each.fence == fence] for fence in sorted(fences))
        return max(together, key=lambda each: (len(each), each[0].fence), default=[])

    def _entered(self, lock: Lock, actor: Actor, place: Place) -> Lease | None:
        return next(iter(self._fit(lock, actor, place)), None)

    def _fit(self, lock: Lock, actor: Actor, place: Place) -> list[Lease]:
        if not lock.reentrant:
            return []
        return [
            lease
            for lease in self._of(actor, place)
            if not lease.lost and lease.kind == lock.kind and lease.weight >= lock.weight
        ]

    def _of(self, actor: Actor, place: Place) -> list[Lease]:
        return [each for each in self.leases if each.actor is actor and each.place == place]

    def _fits(self, lock: Lock, place: Place) -> Answer:
        holders = self.at(place)
        if any(lease.kind != lock.kind for lease in holders):
            return LockError
        return sum(lease.weight for lease in holders) + lock.weight <= lock.capacity

    def _goes(self, lease: Lease) -> bool:
        """Whether it was in."""
        if not self.is_in(lease):
            return False
        self.redis[lease.place].remove(lease)
        return True

    def _pop(self, lock: Lock, hold: Hold) -> None:
        [actor] = [actor for actor, stack in lock.stacks.items() if hold in stack]
        lock.stacks[actor].remove(hold)
        if not lock.stacks[actor]:
            del lock.stacks[actor]

    def _forget_the_dead(self, lock: Lock) -> None:
        """Of those who ended, what they had is forgotten, once it is lost."""
        dead = [actor for actor in lock.stacks if not actor.thread.is_alive()]
        lost = [actor for actor in dead if all(hold.lost for hold in lock.stacks[actor])]
        self._forget(lock, lost)

    def _forget(self, lock: Lock, actors: list[Actor]) -> None:
        for actor in actors:
            for hold in lock.stacks.pop(actor):
                for lease in hold.leases:
                    lease.holds.remove(hold)
        self.leases = [lease for lease in self.leases if lease.holds]

    def _lose(self, lease: Lease) -> None:
        well = [hold for hold in lease.holds if not hold.lost]
        lease.lost = True
        for lock in {hold.lock for hold in well if hold.lost}:  # once, however often entered
            lock.told += 1


def _lease(lock: Lock, actor: Actor, place: Place) -> Lease:
    return Lease(place, actor, lock.kind, lock.weight, lock.renewed)
