"""A lock over several mutexes."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from .. import clock
from ..backends import Server
from ..engine.leases import Lease
from ..engine.operations import Flow
from ..names import Template, check_names
from .base import AcquireCall, BaseLock, Target
from .options import Options


class MultiLock(BaseLock):
    """Several mutexes: all of them are held, or none. Created by `LockManager.lock_many`.

    All callers acquire the mutexes in the same order (Havender, 1968: *Avoiding deadlock in
    multitasking systems*).
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
        return f"<{type(self).__name__} {', '.join(map(repr, self.names))}>"

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
        hold = self._visible_hold()
        tokens = {lease.keys.name: lease.fence_token for lease in hold.leases} if hold else {}
        return {name: tokens.get(name) for name in self.names}

    def _targets(self) -> Sequence[Target]:
        server = self._server()
        return [(server, name) for name in self.names]

    def _acquire_leases(
        self, call: AcquireCall, targets: Sequence[Target]
    ) -> Flow[Sequence[Lease]]:
        deadline = call.wait_until
        while True:
            call.leases.clear()  # the leases of an earlier attempt have ended
            leases: list[Lease] = []
            for target in targets:
                acquired = yield from super()._acquire_leases(call, [target])
                if not acquired:
                    break
                leases += acquired
                call.was_queued = True  # the server is known to store locks
            if len(leases) == self.needed and not any(lease.lost for lease in leases):
                return leases
            yield from self._release_unused(leases)
            # If one was lost during the wait for another, start again with the first.
            timed_out = deadline is not None and clock.now() >= deadline
            if len(leases) < self.needed or timed_out:
                return ()

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., BaseLock]:
        templates = [Template(name, signature) for name in self.names]

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseLock:
            named = copy.copy(self)
            named.names = _in_order(template.of_call(args, kwargs) for template in templates)
            named.name = ", ".join(named.names)
            return named

        return lock


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(check_names(names)))
    if not ordered:
        raise ValueError(f"names must not be empty, got {names!r}")
    return tuple(ordered)
