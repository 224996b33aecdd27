"""Locks that consist of several ordinary locks: all of them, or a majority, must be held."""

import math
from collections.abc import Sequence
from typing import Literal, TypeVar
from weakref import ref

from redis.exceptions import RedisError

from ..engine import registry
from ..engine.lease import Lease
from ..engine.operations import Flow, OnServer
from ..engine.registry import AnyHold, Hold
from ..identity import Owner
from ..snapshots import LockInfo
from . import errors, signal_dispatch
from .acquisition import AcquireCall, Acquisition, AnyAcquisition
from .base import BaseLock
from .lease_flows import extend_lease, release_in_background, release_lease
from .options import OPTION_VALIDATORS

T = TypeVar("T")


PART_ATTRIBUTES = frozenset((*OPTION_VALIDATORS, "on_conflict", "task"))
"""The attributes that a part has in common with the whole."""


class CompositeHold(AnyHold):
    """The hold of a composite lock, made of the holds of its parts.

    Args:
        lock: The composite lock.
        parts: The acquisitions of its parts.
        fence_token: The fencing token of the hold.
    """

    def __init__(
        self, lock: "CompositeLock", parts: Sequence[Acquisition], fence_token: int
    ) -> None:
        self._parts = [part.hold for part in parts if part.hold]
        self._locks = [part.lock for part in parts]  # without them, the registry drops the parts
        self._needed = lock._needed
        self._fence_token = fence_token
        self._is_lost = False
        first = self._parts[0]
        super().__init__(
            first.owner,
            first.server,
            registry.reference_to(lock),
            is_first=any(part.is_first for part in self._parts),
        )
        for part in self._parts:
            part.part_of = ref(self)

    def begin(self) -> None:
        super().begin()
        for part in self._parts:
            part.begin()

    @property
    def parts(self) -> Sequence[Hold]:
        return self._parts

    @property
    def token(self) -> str:
        return self._parts[0].token

    @property
    def fence_token(self) -> int:
        return self._fence_token

    @property
    def lost(self) -> bool:
        """Whether too few parts were left. Another holder may have had the lock since then, so it
        stays true if the renewer acquires parts again."""
        if [part.lost for part in self._parts].count(False) < self._needed:
            self._is_lost = True
        return self._is_lost

    @property
    def deadline(self) -> float:
        deadlines = sorted(part.deadline for part in self._parts if not part.lost)
        if self.lost or len(deadlines) < self._needed:
            return -math.inf
        return deadlines[-self._needed]

    @property
    def is_inherited(self) -> bool:
        return self._parts[0].is_inherited


class CompositeLock(BaseLock):
    """A lock whose parts are ordinary locks.

    A subclass has `_needed`, how many parts a hold must have, and says how the flows of several
    parts run.
    """

    _needed: int

    def _parts(self) -> Sequence[BaseLock]:
        """Return the locks that it consists of."""
        raise NotImplementedError

    def _configured(self, part: BaseLock) -> BaseLock:
        """Give a part the options of this lock."""
        own = vars(self)  # what was set; the defaults are attributes of the class
        vars(part).update({name: own[name] for name in PART_ATTRIBUTES & own.keys()})
        return part

    def _gather(self, flows: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """Return the results of the flows of several parts.

        Args:
            flows: The flows, each with its server.
            enough: How many must succeed, if the lock tolerates errors. The result of one that
                failed is then None.
        """
        raise NotImplementedError

    def _release_hold(self, hold: AnyHold) -> Flow[bool]:
        unused = [part for part in hold.parts if registry.remove(part)]
        released = [part for part in unused if part.lease.may_be_held]
        enough = len(released) - self._needed + 1  # then fewer than needed may still be held
        flows = [
            (part.lease.server, release_lease(part.lease, killed=self.killed)) for part in released
        ]
        try:
            results = yield from self._gather(flows[::-1], enough)
            self._raise_if_lost(hold, released[::-1], results, "release")
            return bool(released)
        finally:
            signal_dispatch.released(self, hold)

    def _extend_hold(
        self, hold: AnyHold, seconds: float, *, replace: bool, action: str
    ) -> Flow[Literal[True]]:
        held = [part for part in hold.parts if not part.lost]
        flows = [
            (part.lease.server, extend_lease(part.lease, seconds, replace=replace))
            for part in held
        ]
        results = yield from self._gather(flows, self._needed)
        self._raise_if_lost(hold, held, results, action)
        return True

    def _raise_if_lost(
        self, hold: AnyHold, parts: Sequence[Hold], results: Sequence[bool | None], action: str
    ) -> None:
        """Record which parts were lost. Raises `LockLost` if too few are left."""
        for part, is_held in zip(parts, results, strict=True):
            if is_held is False:
                self._lose(part)
        if hold.lost:
            raise errors.lock_lost_error(self.name, action)

    def _infos(self) -> Flow[list[LockInfo]]:
        """Return snapshots of the parts that have a holder or a waiter."""
        flows = [(part._server(), part._info()) for part in self._parts()]
        infos = yield from self._gather(flows, self._needed)
        return [info for info in infos if info]

    def _owned(self, owner: Owner) -> Flow[bool]:
        hold = self._holds.of(owner)
        if hold is None:
            return False
        tokens = {part.lease.token for part in hold.parts}
        infos = yield from self._infos()
        held = [any(each.stored_token in tokens for each in info.holders) for info in infos]
        return held.count(True) >= self._needed


class CompositeAcquisition(AnyAcquisition):
    """One acquisition of a composite lock, made of acquisitions of its parts."""

    lock: CompositeLock

    fence_token = 0
    """The fencing token of the hold, if all of its parts have the same."""

    def __init__(self, lock: CompositeLock, call: AcquireCall) -> None:
        super().__init__(lock, call)
        self.parts: list[Acquisition] = []
        self.hold: CompositeHold | None = None

    def acquire_parts(self) -> Flow[Sequence[Acquisition]]:
        """Return the parts of the hold, or none if the lock was not acquired in time. Then none of
        them is held."""
        raise NotImplementedError

    def acquire(self) -> Flow[CompositeHold | None]:
        try:
            parts = yield from self.acquire_parts()
        except GeneratorExit:
            for part in self.parts:
                part.forget()
            raise
        except BaseException:
            yield from self.release_unused(self.parts)
            raise
        if not parts:
            return None
        self.hold = CompositeHold(self.lock, parts, self.fence_token)
        self.lock._holds.append(self.hold)
        return self.hold

    def release_unused(self, parts: Sequence[Acquisition]) -> Flow[None]:
        """Release parts that no hold needs. The renewer releases what fails here."""
        leases: list[Lease] = []
        try:
            leases += [part.lease for part in parts if part.lease and part.hold]
            for part in parts:
                part.forget()
            flows = [(lease.server, release_lease(lease, unused=True)) for lease in leases]
            yield from self.lock._gather(flows, 0)
        except BaseException as error:
            for lease in leases:  # some flows may not have begun
                release_in_background(lease, unused=True)
            if not isinstance(error, RedisError):
                raise

    def abandon(self) -> None:
        if self.hold:
            self.lock._abandon(self.hold, unused=True)
        for part in self.parts:
            part.abandon()

    def blocker(self) -> Flow[LockInfo | None]:
        # The parts are requested one after the other, until one is refused.
        return (yield from self.parts[-1].blocker())
