"""A lock on a majority of independent servers."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias, Unpack

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError

from .. import clock
from ..backends import Server
from ..engine import protocol
from ..engine.leases import Lease
from ..engine.operations import Flow, Gather, OnServer, Sleep
from ..engine.outages import is_outage
from ..exceptions import LockError
from ..snapshots import LockInfo
from ..text import error_text
from ..tokens import new_stored_token
from . import errors
from .base import AcquireCall, BaseLock, T, Target
from .options import Options

MAX_REPLY_SECONDS = 0.5
"""How long one server may take to reply, unless `MAX_REPLY_FRACTION` of the lease is less."""

MAX_REPLY_FRACTION = 0.2

GATHER_SECONDS = 0.25
"""How long a caller that queued at the first server waits at the others, whose previous holder may
be releasing them at this moment."""

RETRY_DELAY_SECONDS = 0.01, 0.2
"""The range of the random delay between two attempts, which separates rivals."""

Result: TypeAlias = bool | BaseException
"""Whether a server granted its lease, or the error."""


class Quorum(BaseLock):
    """A mutex that a majority of independent servers must grant. Created by `LockManager.quorum`.

    The safety rule is the rule of Redlock (Sanfilippo, 2014): a majority must grant the lock
    within the lease, less the clock drift. Otherwise all grants are released. There are two
    differences:

    - A caller queues at the first server that responds, in the order of the cache aliases. When
      that server grants the lock, the caller asks the other servers. So waiters are notified
      instead of polling. They acquire the lock in the order of arrival while all of them see the
      same first server.
    - The lock counts as held only after a majority has recorded the largest fencing token of all
      grants, like a ballot in Paxos (Lamport, 1998). So the fencing token grows from holder to
      holder, whatever the clocks of the servers say.
    """

    kind = "quorum"
    capacity = 1
    weight = 1
    drift = 0.01, 0.002
    accepts_grants = False
    rides_outages = False  # it asks the other servers instead, and rides if a majority is away

    def __init__(
        self, servers: Sequence[Callable[[], Server]], name: str, **options: Unpack[Options]
    ) -> None:
        super().__init__(servers[0], name, **options)
        self._servers = servers
        self.needed = len(servers) // 2 + 1
        self.reply_timeout = min(MAX_REPLY_SECONDS, self.timeout * MAX_REPLY_FRACTION)

    @property
    def validity(self) -> float:
        """The seconds for which a majority certainly keeps the lock for the caller, less the clock
        drift. 0 if the caller does not hold the lock. A renewal extends this time."""
        hold = self._visible_hold()
        return max(0.0, hold.deadline - clock.now()) if hold else 0.0

    def _targets(self) -> Sequence[Target]:
        servers = [server() for server in self._servers]
        _check_different(servers)
        return [(server, self.name) for server in servers]

    def _client(self, server: Server) -> Any:
        """Return None: each flow runs on the client of its own server, which may be down."""

    async def _aclient(self, server: Server) -> Any:
        """Async version of `_client()`."""

    def _gather(self, flows: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """Return the results of flows that run at the same time: None for one that fails.

        Raises redis-py's `ConnectionError` if fewer than `enough` succeed.
        """
        results: list[Any] = yield Gather(tuple(flows))
        self._check_failures(results, len(flows) - enough)
        return [None if isinstance(result, BaseException) else result for result in results]

    def _acquire_leases(
        self, call: AcquireCall, targets: Sequence[Target]
    ) -> Flow[Sequence[Lease]]:
        own = yield from self._own_leases(call, targets)
        by_token: defaultdict[str, list[Lease]] = defaultdict(list)
        servers_with: Counter[str] = Counter()
        for leases in own:
            usable = [lease for lease in leases if self._can_reenter(lease)]
            servers_with.update({lease.token for lease in usable})
            for lease in usable:
                if lease not in by_token[lease.token]:  # of several aliases of one server
                    by_token[lease.token].append(lease)
        # The latest one, in case another one was lost without notice.
        for leases in sorted(by_token.values(), key=lambda each: -each[0].fence_token):
            # The hold of a quorum with other servers can have more leases than are held here.
            if len(leases) == servers_with[leases[0].token] >= self.needed:
                return leases
        held_by_caller = sum(self._waits_for_itself(each, call) for each in own)
        if len(targets) - held_by_caller < self.needed:
            raise errors.already_held(self, self.name, call.owner, chain.from_iterable(own))
        failures = 0
        while True:
            try:
                held = yield from self._try_acquire(call)
            except ConnectionError as error:
                if not is_outage(error.__cause__ or error):
                    raise
                failures += 1
                yield Sleep(self._pause(call, error, failures))
                continue
            failures = 0
            if held or (call.wait_until is not None and clock.now() >= call.wait_until):
                return held
            yield Sleep(random.uniform(*RETRY_DELAY_SECONDS))  # noqa: S311  no secret

    def _try_acquire(self, call: AcquireCall) -> Flow[Sequence[Lease]]:
        """Return the leases of a majority, or none. Then no lease is left on any server."""
        token = self.stored_token or new_stored_token(call.token)
        call.leases.clear()  # the leases of earlier attempts have ended
        leases = [self._new_lease(call, server, name, token) for server, name in call.targets]
        results = yield from self._request_all(call, leases)
        granted = _successful(leases, results)
        fenced = yield from self._agree_on_fence(granted)
        held = _successful(granted, fenced)
        valid = sum(not lease.lost for lease in held)
        # A server on which the name is in use for another lock type refuses.
        refusal = next((each for each in results if isinstance(each, LockError)), None)
        if valid < self.needed or refusal:
            held = []
        yield from self._release_unused([lease for lease in leases if lease not in held])
        if refusal:
            raise LockError(str(refusal), lock_name=self.name)
        if not held:
            self._check_failures(results + fenced, len(leases) - self.needed)
        return held

    def _request_all(self, call: AcquireCall, leases: Sequence[Lease]) -> Flow[list[Result]]:
        """Wait at the first server that responds. Once it grants its lease, ask the others."""
        results: list[Result] = []
        for lease in leases[: len(leases) - self.needed + 1]:  # a majority remains behind these
            flow = self._acquire_lease(call, lease, call.wait_until)
            results += yield Gather(((lease.server, flow),))
            if not isinstance(results[-1], BaseException):
                break
        if results[-1] is not True:
            return results
        until = clock.now() + GATHER_SECONDS
        until = until if call.wait_until is None else min(until, call.wait_until)
        rest = tuple(
            (lease.server, self._acquire_lease(call, lease, until))
            for lease in leases[len(results) :]
        )
        others: list[Result] = yield Gather(rest)
        return results + others

    def _agree_on_fence(self, leases: Sequence[Lease]) -> Flow[list[Result]]:
        """Return for each lease whether its server recorded the largest fencing token of all."""
        largest = max((lease.fence_token for lease in leases), default=0)
        results: list[Result] = yield Gather(
            tuple((lease.server, protocol.raise_fence(lease, largest)) for lease in leases)
        )
        return results

    def _is_held(self, infos: Sequence[LockInfo]) -> bool:
        holders = Counter(holding.stored_token for info in infos for holding in info.holders)
        return max(holders.values(), default=0) >= self.needed

    def _check_failures(self, results: Sequence[object], tolerated: int) -> None:
        failed = [result for result in results if isinstance(result, BaseException)]
        if len(failed) > tolerated:
            # The cause is an outage if enough servers can come back by themselves.
            away = [each for each in failed if is_outage(each)]
            lasting = [each for each in failed if each not in away]
            [cause, *_] = lasting if len(lasting) > tolerated else away
            raise ConnectionError(
                f"Lock {self.name!r} needs {self.needed} of {len(self._servers)} servers, "
                f"but {len(failed)} failed: {error_text(cause)}"
            ) from cause


def _successful(leases: Sequence[Lease], results: Sequence[Result]) -> list[Lease]:
    return [lease for lease, result in zip(leases, results, strict=False) if result is True]


def _check_different(servers: Sequence[Server]) -> None:
    for server in servers:
        same = [each.alias for each in servers if each.address == server.address]
        if server.address and len(same) > 1:
            raise ImproperlyConfigured(
                f"using has {len(same)} cache aliases on the server {server.address}: "
                f"{', '.join(map(repr, same))}. Each alias of a quorum needs its own server."
            )
