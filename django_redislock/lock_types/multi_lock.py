"""A lock over several mutexes."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, Unpack

from redis.exceptions import RedisError

from .. import clock
from ..backends import Server
from ..engine import protocol
from ..engine.holds import Holds
from ..engine.lease import Lease
from ..engine.operations import Flow
from ..names import Template, check_names
from .base import BaseLock
from .core import Attempt, Options


class Many(BaseLock):
    """Several mutexes: all of them are held, or none. Created by `LockManager.lock_many`.

    The mutexes are acquired one after the other, sorted by name. All callers use the same order,
    so two callers cannot wait for each other (Havender, 1968: *Avoiding deadlock in multitasking
    systems*). `blocking_timeout` limits the total wait.
    """

    kind = "mutex"
    capacity = 1
    weight = 1

    def __init__(
        self, server: Callable[[], Server], names: Iterable[str], **options: Unpack[Options]
    ) -> None:
        self.names = _in_order(names)
        super().__init__(server, self.names[0], **options)
        self.name = ", ".join(self.names)  # for errors; no lock has this name

    def __repr__(self) -> str:
        return f"<Many {', '.join(map(repr, self.names))}>"

    @property
    def needed(self) -> int:  # type: ignore[override]
        return len(self.names)

    @property
    def fence_token(self) -> int | None:
        """Always None, because each mutex has its own token in `fence_tokens`."""
        return None

    @property
    def fence_tokens(self) -> Mapping[str, int | None]:
        """The fencing token of each mutex by name, or None if the caller does not hold it."""
        hold = self._seen()
        tokens = {lease.keys.name: lease.fence_token for lease in hold.leases} if hold else {}
        return {name: tokens.get(name) for name in self.names}

    def _where(self) -> Sequence[tuple[Server, str]]:
        server = self._server()
        return [(server, name) for name in self.names]

    def _take_all(self, attempt: Attempt) -> Flow[Sequence[Lease]]:
        until = attempt.deadline
        while True:
            leases = yield from self._try(attempt)
            try:
                if len(leases) == self.needed and not any(lease.lost for lease in leases):
                    return leases
                yield from self._give_back(leases)
            except BaseException:  # an interrupt
                protocol.abandon_new(leases)
                raise
            # If one was lost during the wait for another, start again with the first.
            if len(leases) < self.needed or (until is not None and clock.now() >= until):
                return ()

    def _try(self, attempt: Attempt) -> Flow[Sequence[Lease]]:
        leases: list[Lease] = []
        try:
            for target in attempt.targets:
                taken = yield from self._take(attempt, target)
                if not taken:
                    break
                leases += taken
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._give_back(leases)
            raise
        return leases

    def _give_back(self, leases: Sequence[Lease]) -> Flow[None]:
        fresh = [lease for lease in reversed(leases) if not lease.entered]
        with suppress(RedisError):
            yield from self._each([(lease.server, protocol.drop(lease)) for lease in fresh], 0)

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., BaseLock]:
        templates = [Template(name, signature) for name in self.names]

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseLock:
            return self._of_names([template.of_call(args, kwargs) for template in templates])

        return lock

    def _of_names(self, names: Iterable[str]) -> Self:
        lock = copy.copy(self)
        lock.names = _in_order(names)
        lock.name = ", ".join(lock.names)
        lock._holds = Holds()
        return lock


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(check_names(names)))
    if not ordered:
        raise ValueError(f"names must not be empty, got {names!r}")
    return tuple(ordered)
