"""A lock on a majority of independent servers."""

import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias, Unpack

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError

from .. import clock
from ..backends import Server
from ..engine import protocol
from ..engine.lease import Lease, held_by, remember
from ..engine.operations import Flow, Gather, OnServer, Sleep
from ..exceptions import LockError
from ..snapshots import LockInfo
from ..text import error_text
from .base import BaseLock
from .core import Attempt, Options, T

PATIENCE = 0.5, 0.2
"""How long one server may take to answer: seconds, or that part of the lease if it is less."""

TOGETHER = 0.25
"""Seconds that those who queued at the first server wait at the others: for what is just being
released there."""

BACK_OFF = 0.01, 0.2
"""Seconds between two tries, drawn from here, so that rivals get out of step."""

Outcome: TypeAlias = bool | BaseException


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

    def __init__(
        self, servers: Sequence[Callable[[], Server]], name: str, **options: Unpack[Options]
    ) -> None:
        super().__init__(servers[0], name, **options)
        self._servers = servers
        self.needed = len(servers) // 2 + 1
        self.patience = min(PATIENCE[0], self.timeout * PATIENCE[1])

    @property
    def validity(self) -> float:
        """The seconds for which a majority certainly keeps the lock for the caller, less the clock
        drift. 0 if the caller does not hold the lock. A renewal extends this time."""
        hold = self._seen()
        return max(0.0, hold.deadline - clock.now()) if hold else 0.0

    # Where

    def _where(self) -> Sequence[tuple[Server, str]]:
        servers = [server() for server in self._servers]
        _refuse_the_same(servers)
        return [(server, self.name) for server in servers]

    def _client(self, server: Server) -> Any:
        """None: its flows have each server asked by its own, and that one may be away."""

    async def _async_client(self, server: Server) -> Any:
        """See _client()."""

    def _each(self, wanted: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """What each flow answers, all at the same time; None for one that fails, where others
        are `enough`."""
        answers: list[Any] = yield Gather(tuple(wanted))
        self._refuse_failures(answers, len(wanted) - enough)
        return [None if isinstance(answer, BaseException) else answer for answer in answers]

    # How it is acquired

    def _take_all(self, attempt: Attempt) -> Flow[Sequence[Lease]]:
        owner, targets, until = attempt.owner, attempt.targets, attempt.deadline
        own = [held_by(owner, book.server, name) for book, name in targets]
        entered = self._entered_before(own)
        if len(entered) >= self.needed:
            return entered
        for_itself = sum(self._waits_for_itself(each, attempt) for each in own)
        if len(targets) - for_itself < self.needed:
            raise self._already_held(self.name, owner, chain.from_iterable(own))
        while True:
            leases = self._new_leases(attempt)
            held = yield from self._try(leases, attempt)
            if held or (until is not None and clock.now() >= until):
                return held
            yield Sleep(random.uniform(*BACK_OFF))  # noqa: S311  jitter, no secret

    def _entered_before(self, own: Sequence[Sequence[Lease]]) -> list[Lease]:
        """The most leases of one token that the caller may enter once more, the latest if there
        are as many of another."""
        by_token: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in filter(self._may_enter, chain.from_iterable(own)):
            by_token[lease.token].append(lease)
        together = by_token.values()
        return max(together, key=lambda each: (len(each), each[0].fence_token), default=[])

    def _try(self, leases: Sequence[Lease], attempt: Attempt) -> Flow[Sequence[Lease]]:
        """The leases of a majority, or none, and then none is left."""
        try:
            outcomes = yield from self._ask(leases, attempt.deadline)
            got = _those_that_did(leases, outcomes)
            noted = yield from self._agree(got)
            held = _those_that_did(got, noted)
            alive = sum(not lease.lost for lease in held)
            if alive < self.needed or _refusals(outcomes):
                held = []
            yield from _give_back([lease for lease in leases if lease not in held])
            for lease in held:
                remember(lease, attempt.owner)
        except GeneratorExit:
            raise
        except BaseException:
            for lease in leases:  # one may be got only now, where this is an interrupt
                lease.end()
            yield from _give_back(leases)
            raise
        if not held:
            for refusal in _refusals(outcomes):  # there it is of another kind
                raise LockError(str(refusal), lock_name=self.name)
            self._refuse_failures(outcomes + noted, len(leases) - self.needed)
        return held

    def _ask(self, leases: Sequence[Lease], until: float | None) -> Flow[list[Outcome]]:
        """What came of each lease. Whose turn has come at one server asks the others."""
        outcomes = yield from self._queue(leases, until)
        if outcomes[-1] is not True:
            return outcomes
        soon = clock.now() + TOGETHER
        soon = soon if until is None else min(soon, until)
        rest = leases[len(outcomes) :]
        others: list[Outcome] = yield Gather(tuple(self._asked(lease, soon) for lease in rest))
        return outcomes + others

    def _queue(self, leases: Sequence[Lease], until: float | None) -> Flow[list[Outcome]]:
        """What came of the first ones, up to that of a server that answers."""
        outcomes: list[Outcome] = []
        for lease in leases[: len(leases) - self.needed + 1]:  # no majority is left behind these
            outcomes += yield Gather((self._asked(lease, until),))
            if not isinstance(outcomes[-1], BaseException):
                break
        return outcomes

    def _asked(self, lease: Lease, until: float | None) -> OnServer[bool]:
        # A turn is confirmed at once: what counts is a full lease.
        want = replace(self._want(lease.keys, lease.token), renewed=False)
        return lease.server, protocol.take(lease, want, until)

    def _agree(self, leases: Sequence[Lease]) -> Flow[list[Outcome]]:
        """Of each lease, whether it took over the greatest fencing token of all."""
        greatest = max((lease.fence_token for lease in leases), default=0)
        noted: list[Outcome] = yield Gather(
            tuple((lease.server, protocol.raise_fence(lease, greatest)) for lease in leases)
        )
        return noted

    def _new_leases(self, attempt: Attempt) -> list[Lease]:
        owner, token = attempt.owner, attempt.token
        token = uuid.uuid4().hex if token is None else token
        return [self._new_lease(book, name, token, owner) for book, name in attempt.targets]

    # What the servers say

    def _is_held(self, infos: Sequence[LockInfo]) -> bool:
        holders = Counter(holding.token for info in infos for holding in info.holders)
        return max(holders.values(), default=0) >= self.needed

    def _refuse_failures(self, answers: Sequence[object], tolerated: int) -> None:
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failed) > tolerated:
            raise ConnectionError(
                f"Lock {self.name!r} needs {self.needed} of {len(self._servers)} servers, "
                f"but {len(failed)} failed: {error_text(failed[0])}"
            ) from failed[0]


def _refusals(outcomes: Sequence[object]) -> list[LockError]:
    return [outcome for outcome in outcomes if isinstance(outcome, LockError)]


def _those_that_did(leases: Sequence[Lease], outcomes: Sequence[Outcome]) -> list[Lease]:
    return [lease for lease, outcome in zip(leases, outcomes, strict=False) if outcome is True]


def _give_back(leases: Sequence[Lease]) -> Flow[None]:
    """What fails is given back by the renewal, as soon as its server answers."""
    begun = [lease for lease in leases if lease.fence_token]
    try:
        yield Gather(tuple((lease.server, protocol.drop(lease)) for lease in begun))
    except BaseException:  # an interrupt, and some servers may not have been asked
        for lease in begun:
            protocol.abandon(lease)
        raise


def _refuse_the_same(servers: Sequence[Server]) -> None:
    aliases: defaultdict[object, list[str]] = defaultdict(list)
    for server in servers:
        if server.address:
            aliases[server.address].append(server.alias)
    for address, same in aliases.items():
        if len(same) > 1:
            raise ImproperlyConfigured(
                f"using has {len(same)} cache aliases on the server {address}: "
                f"{', '.join(map(repr, same))}. Each alias of a quorum needs its own server."
            )
