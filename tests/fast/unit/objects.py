"""The rules of lock objects that several actors share, in plain Python, and these actors.

An actor that acquires a lock has a hold. With a reentrant lock it can have several: a lock object
has a stack of holds for each actor. A hold has one lease, or several, of which it needs a certain
number. A lease is an entry in Redis, and ends with its last hold. A re-entry is another hold on
the same lease, also through another lock object.

Redis knows at once that a lease has ended. Its actor learns it with the next request, and from
then on the lease is `lost`. A hold with too few leases is lost, and its lock object is notified.

Nothing waits, and no lease is short enough to expire during a test.
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
    """A thread that executes one function after the other until `end()`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._orders: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._outcomes: SimpleQueue[Any] = SimpleQueue()
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def __repr__(self) -> str:
        return self.name[0]  # the same for its successor

    def does(self, order: Callable[[], Any]) -> Any:
        """Return the result of the function, or the class of the `LockError` that it raises."""
        self._orders.put(order)
        found = self._outcomes.get(timeout=30)
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        self._orders.put(lambda: StopIteration)
        self.thread.join()

    def _run(self) -> None:
        # The function and its traceback refer to the lock, so both are deleted before `put`.
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
    """The fencing token in the listing of Redis; 0 before the first listing."""

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
    """A lock object and its holds."""

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
        """How often it was notified of a loss."""

    def mine(self, actor: Actor) -> Hold | None:
        stack = self.stacks.get(actor)
        return stack[-1] if stack else None

    def known(self, actor: Actor) -> Hold | None:
        """Return the actor's hold, or the only other actor's."""
        if actor in self.stacks or len(self.stacks) != 1:
            return self.mine(actor)
        return next(iter(self.stacks.values()))[-1]

    def lost(self, actor: Actor) -> bool:
        """Return whether the visible hold is lost, or without one whether any hold is."""
        known = self.known(actor)
        return any(hold.lost for hold in ([known] if known else self.all_holds()))

    def all_holds(self) -> list[Hold]:
        return [hold for stack in self.stacks.values() for hold in stack]


class Model:
    def __init__(self) -> None:
        self.redis: dict[Place, list[Lease]] = {}
        """The leases in Redis, the oldest first."""
        self.leases: list[Lease] = []
        """The leases with holds, in Redis or not, the oldest first."""

    # The methods of a lock object

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

    # Other events

    def force(self, place: Place, fence: int | None = None) -> int:
        gone = [each for each in self.at(place) if fence in (None, each.fence)]
        for lease in gone:
            self._goes(lease)
        return len(gone)

    def renew(self, alias: str) -> None:
        """Renew the leases on one server, except leases that nobody can release, and the remaining
        leases of lost holds."""
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
        """Delete a lock object. Its leases expire."""
        self._forget(lock, list(lock.stacks))

    # Details

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
        """Acquire a majority. A caller that the first server refuses asks no other server, and no
        server may have another kind."""
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
        """Return the largest group of leases with one fencing token, or the latest of them."""
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
        """Delete a lease in Redis, and return whether it was there."""
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
        """Remove the holds of actors that ended, once all of these are lost."""
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
        for lock in {hold.lock for hold in well if hold.lost}:  # once for each lock object
            lock.told += 1


def _lease(lock: Lock, actor: Actor, place: Place) -> Lease:
    return Lease(place, actor, lock.kind, lock.weight, lock.renewed)
