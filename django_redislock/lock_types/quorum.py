"""A lock on a majority of independent servers."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Unpack

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError

from .. import clock
from ..backends import Server
from ..engine import protocol, registry
from ..engine.lease import Lease, Retake
from ..engine.operations import Flow, Gather, OnServer, Sleep
from ..engine.outages import is_outage
from ..engine.registry import Hold
from ..engine.runners import arun, run
from ..engine.timing import (
    QUORUM_DRIFT,
    QUORUM_GATHER_SECONDS,
    QUORUM_PAUSE_SECONDS,
    QUORUM_REPLY_FRACTION,
    QUORUM_REPLY_SECONDS,
)
from ..exceptions import LockError
from ..snapshots import LockInfo
from ..text import error_text
from ..tokens import new_stored_token, token_of
from . import errors
from .acquisition import AcquireCall, Acquisition, AnyAcquisition
from .base import BaseLock
from .composite import CompositeAcquisition, CompositeLock, T
from .options import LockOptions


class Quorum(CompositeLock):
    """A mutex that a majority of independent servers must grant. Created by `LockManager.quorum`.

    The safety rule is the rule of Redlock (Sanfilippo, 2014): a majority must grant the lock
    within the lease, less the clock drift. Otherwise all grants are released. There are three
    differences:

    - A caller queues at the first server that responds, in the order of the cache aliases. When
      that server grants the lock, the caller asks the other servers. So waiters are notified
      instead of polling. They acquire the lock in the order of arrival while all of them see the
      same first server.
    - The lock counts as held only after a majority has recorded the largest fencing token of all
      grants, like a ballot in Paxos (Lamport, 1998). So the fencing token grows from holder to
      holder, whatever the clocks of the servers say.
    - While the lock is held, the renewal acquires it again on servers on which it is not held, if
      it is free there. So servers may be away one after the other, each for longer than a lease.
    """

    kind = "quorum"
    capacity = 1
    weight = 1
    rides_outages = False  # it asks the other servers instead, and rides if a majority is away

    def __init__(
        self, servers: Sequence[Callable[[], Server]], name: str, **options: Unpack[LockOptions]
    ) -> None:
        super().__init__(servers[0], name, **options)
        self._servers = servers
        self._needed = len(servers) // 2 + 1
        self.reply_timeout = min(QUORUM_REPLY_SECONDS, self.timeout * QUORUM_REPLY_FRACTION)

    @property
    def validity(self) -> float:
        """The seconds for which a majority certainly keeps the lock for the caller, less the clock
        drift. 0 if the caller does not hold the lock. A renewal extends this time."""
        hold = self._visible_hold()
        return max(0.0, hold.deadline - clock.now()) if hold else 0.0

    def _parts(self) -> "Sequence[QuorumPart]":
        _check_different([server() for server in self._servers])
        return [QuorumPart(self, server) for server in self._servers]

    def _acquisition(self, call: AcquireCall) -> "QuorumAcquisition":
        return QuorumAcquisition(self, call)

    def _aliases(self) -> str:
        return ", ".join(dict.fromkeys(server().alias for server in self._servers))

    # Each request of a flow names its own server, of which some may be down: see `_gather()`. So
    # the flows need no client.

    def _client_for(self, acquisition: AnyAcquisition) -> Any:
        return None

    async def _aclient_for(self, acquisition: AnyAcquisition) -> Any:
        return None

    def _run(self, server: Server, flow: Flow[T]) -> T:
        return run(None, flow)  # type: ignore[arg-type]

    async def _arun(self, server: Server, flow: Flow[T]) -> T:
        return await arun(None, flow)  # type: ignore[arg-type]

    def _gather(self, flows: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """Return the results of flows that run at the same time: None for one that fails.

        Raises redis-py's `ConnectionError` if fewer than `enough` succeed.
        """
        results: list[Any] = yield Gather(tuple(flows))
        self._check_failures(results, len(flows) - enough)
        return [None if isinstance(result, BaseException) else result for result in results]

    def _locked(self) -> Flow[bool]:
        infos = yield from self._infos()
        holders = Counter(holding.token for info in infos for holding in info.holders)
        return max(holders.values(), default=0) >= self._needed

    def _check_failures(self, results: Sequence[object], tolerated: int) -> None:
        """Raise `LockError` if a server has the name in use for another lock type, and redis-py's
        `ConnectionError` if more servers failed than are tolerated."""
        failed = [result for result in results if isinstance(result, BaseException)]
        for each in failed:
            if isinstance(each, LockError):
                raise LockError(str(each), lock_name=self.name)
        if len(failed) > tolerated:
            # The cause is an outage if enough servers can come back by themselves.
            away = [each for each in failed if is_outage(each)]
            lasting = [each for each in failed if each not in away]
            [cause, *_] = lasting if len(lasting) > tolerated else away
            raise ConnectionError(
                f"Lock {self.name!r} needs {self._needed} of {len(self._servers)} servers, "
                f"but {len(failed)} failed: {error_text(cause)}"
            ) from cause


class QuorumPart(BaseLock):
    """The lock of a quorum on one of its servers."""

    kind = Quorum.kind
    capacity = Quorum.capacity
    weight = Quorum.weight
    rides_outages = False

    def __init__(self, whole: Quorum, server: Callable[[], Server]) -> None:
        super().__init__(server, whole.name)
        whole._configured(self)
        self.reply_timeout = whole.reply_timeout


class QuorumAcquisition(CompositeAcquisition):
    """One acquisition of a quorum lock: attempts until a majority grants it."""

    lock: Quorum

    def acquire_parts(self) -> Flow[Sequence[Acquisition]]:
        parts = self._begin()
        own = yield from self._own_leases(parts)
        if again := self._enter_again(parts, own):
            return again
        held_by_caller = sum(map(QuorumPartAcquisition.waits_for_itself, parts, own))
        if len(parts) - held_by_caller < self.lock._needed:
            leases = chain.from_iterable(own)
            raise errors.already_held_error(self.lock, self.lock.name, self.call.owner, leases)
        until = self.call.wait_until
        failures = 0
        while True:
            try:
                held = yield from self._try()
            except ConnectionError as error:
                if not is_outage(error.__cause__ or error):
                    raise
                failures += 1
                pause = self.pause_after(error, failures)
                yield from self.release_unused(self.parts)
                yield Sleep(pause)
                continue
            failures = 0
            if held or (until is not None and clock.now() >= until):
                return held
            yield Sleep(random.uniform(*QUORUM_PAUSE_SECONDS))  # noqa: S311  no secret

    def _begin(self) -> "list[QuorumPartAcquisition]":
        """Return the acquisitions of a new attempt, one for each server, with one token."""
        locks = self.lock._parts()
        servers = [lock._server() for lock in locks]
        token = self.lock.stored_token or new_stored_token(self.call.token)
        parts = [
            QuorumPartAcquisition(lock, self.call, server, servers, token)
            for lock, server in zip(locks, servers, strict=True)
        ]
        self.parts = list[Acquisition](parts)
        return parts

    def _own_leases(self, parts: "Sequence[QuorumPartAcquisition]") -> Flow[list[list[Lease]]]:
        """Return the leases by which the caller holds each part."""
        if not any(part.is_known_to_caller() for part in parts):
            return [[] for _ in parts]
        flows = [(part.server, part.own_leases()) for part in parts]
        found = yield from self.lock._gather(flows, 0)
        return [leases or [] for leases in found]

    def _enter_again(
        self, parts: "Sequence[QuorumPartAcquisition]", own: Sequence[Sequence[Lease]]
    ) -> "list[Acquisition]":
        """Return parts that use the leases of an earlier hold of the caller, or none."""
        parts_of: defaultdict[str, list[Acquisition]] = defaultdict(list)
        leases_of: defaultdict[str, dict[Lease, None]] = defaultdict(dict)
        for part, leases in zip(parts, own, strict=True):
            usable = [lease for lease in leases if self.lock._can_reenter(lease)]
            for lease in usable:
                leases_of[token_of(lease.token)][lease] = None
            for token in {token_of(lease.token) for lease in usable}:
                parts_of[token].append(part)
        for token, found in leases_of.items():
            # Fewer leases, if several aliases are one server. More leases, if the quorum of the
            # hold has other servers, too.
            if len(found) == len(parts_of[token]) >= self.lock._needed:
                for again, lease in zip(parts_of[token], found, strict=True):
                    self.fence_token = registry.holds_of(lease)[0].whole.fence_token
                    again.enter(lease, is_first=False)
                return parts_of[token]
        return []

    def _try(self) -> Flow[Sequence[Acquisition]]:
        """Return the parts of a majority, or none. Then no lease is left on any server."""
        parts = self._begin()
        results = yield from self._request_all(parts)
        self.was_queued |= any(part.was_queued for part in parts)
        granted = [part for part in parts if part.hold]
        fenced = yield from self._agree_on_fence(granted)
        needed = self.lock._needed
        self.lock._check_failures([*results, *fenced], len(parts) - needed)
        valid = [
            part
            for part, is_recorded in zip(granted, fenced, strict=True)
            if is_recorded is True and part.lease and not part.lease.lost
        ]
        if len(valid) < needed:
            yield from self.release_unused(parts)
            return []
        missing = [part for part in parts if part not in valid]
        yield from self.release_unused(missing)
        if not self.lock.auto_renewal:
            return valid
        for part in missing:
            part.begin_without()
        for part in parts:
            part.retake_later(self.fence_token)
        return parts

    def blocker(self) -> Flow[LockInfo | None]:
        for part in self.parts:
            [info] = yield from self.lock._gather([(part.server, part.blocker())], 0)
            if info:
                return info
        return None

    def _request_all(self, parts: "Sequence[QuorumPartAcquisition]") -> Flow[list[object]]:
        """Wait at the first server that responds. Once it grants its lease, ask the others."""
        results: list[object] = []
        until = self.call.wait_until
        # A majority remains behind these.
        for part in parts[: len(parts) - self.lock._needed + 1]:
            results += yield Gather(((part.server, part.request(until)),))
            if not isinstance(results[-1], BaseException):
                break
        if not isinstance(results[-1], Hold):
            return results
        limit = clock.now() + QUORUM_GATHER_SECONDS
        if until is not None:
            limit = min(until, limit)
        others: list[object] = yield Gather(
            tuple((part.server, part.request(limit)) for part in parts[len(results) :])
        )
        return results + others

    def _agree_on_fence(self, parts: "Sequence[QuorumPartAcquisition]") -> Flow[list[object]]:
        """Return for each part whether its server recorded the largest fencing token of all."""
        leases = [part.lease for part in parts if part.lease]
        self.fence_token = max((lease.fence_token for lease in leases), default=0)
        results: list[object] = yield Gather(
            tuple(
                (lease.server, protocol.raise_fence(lease, self.fence_token)) for lease in leases
            )
        )
        return results


class QuorumPartAcquisition(Acquisition):
    """One acquisition of the lock of a quorum on one of its servers."""

    renewal_confirms_grant = False

    def __init__(
        self,
        lock: QuorumPart,
        call: AcquireCall,
        server: Server,
        all_servers: Sequence[Server],
        stored_token: str,
    ) -> None:
        super().__init__(lock, call, server, stored_token=stored_token, is_part=True)
        self._all_servers = all_servers

    def is_known_to_caller(self) -> bool:
        """Return whether the caller may hold this part."""
        return any(registry.leases_by_client(self.call.owner, self.server, self.lock.name))

    def begin_without(self) -> None:
        """Begin the hold without this server, which was away, or which another caller holds."""
        lease = self.lease = self.new_lease()
        lease.begin_lost()
        self.enter(lease, is_first=True)

    def retake_later(self, fence_token: int) -> None:
        """Let the renewer acquire the lock again if it is lost."""
        lease = self.lease
        if lease:
            lease.retake = Retake(self.new_request(lease), fence_token)
            lease.renewer.watch(lease)

    def new_lease(self) -> Lease:
        lease = super().new_lease()
        lease.drift = QUORUM_DRIFT
        return lease

    def _possible(self, elsewhere: list[Lease]) -> list[Lease]:
        # All servers of a quorum have the same keys and the same token.
        return [lease for lease in elsewhere if lease.server not in self._all_servers]


def _check_different(servers: Sequence[Server]) -> None:
    for server in servers:
        same = [each.alias for each in servers if each.address == server.address]
        if server.address and len(same) > 1:
            raise ImproperlyConfigured(
                f"using has {len(same)} cache aliases on the server {server.address}: "
                f"{', '.join(map(repr, same))}. Each alias of a quorum needs its own server."
            )
