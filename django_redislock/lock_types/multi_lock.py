"""A lock over several mutexes."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from redis.exceptions import ResponseError

from .. import clock
from ..backends import Server
from ..engine.operations import Flow, OnServer
from ..names import Template, check_names
from .acquisition import AcquireCall, Acquisition
from .base import BaseLock
from .composite import CompositeAcquisition, CompositeLock, T
from .mutex import Mutex
from .options import LockOptions


class MultiLock(CompositeLock):
    """Several mutexes: all of them are held, or none. Created by `LockManager.lock_many`.

    All callers acquire the mutexes in the same order (Havender, 1968: *Avoiding deadlock in
    multitasking systems*).
    """

    kind = "mutex"
    capacity = 1
    weight = 1

    def __init__(
        self, server: Callable[[], Server], names: Iterable[str], **options: Unpack[LockOptions]
    ) -> None:
        self.names = _in_order(names)
        super().__init__(server, self.names[0], **options)
        self.name = ", ".join(self.names)  # for errors; no lock has this name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.names))}>"

    @property
    def fence_token(self) -> int | None:
        """Always None, because each mutex has its own token in `fence_tokens`."""
        return None

    @property
    def fence_tokens(self) -> Mapping[str, int | None]:
        """The fencing token of each mutex by name, or None if the caller does not hold it."""
        hold = self._visible_hold()
        parts = hold.parts if hold else ()
        tokens = {part.lease.keys.name: part.fence_token for part in parts}
        return {name: tokens.get(name) for name in self.names}

    @property
    def _needed(self) -> int:  # type: ignore[override]
        return len(self.names)

    def _parts(self) -> Sequence[BaseLock]:
        return [self._configured(Mutex(self._server, name)) for name in self.names]

    def _acquisition(self, call: AcquireCall) -> "MultiAcquisition":
        return MultiAcquisition(self, call)

    def _gather(self, flows: Sequence[OnServer[T]], enough: int) -> Flow[list[T | None]]:
        """Return the results of flows that run one after the other.

        If Redis replies with an error, the other flows still run, and then the error is raised. If
        Redis does not reply, or after an interrupt, the error is raised at once.
        """
        results: list[T | None] = []
        first_error: ResponseError | None = None
        for _, flow in flows:
            try:
                results.append((yield from flow))
            except ResponseError as error:
                first_error = first_error or error
        if first_error:
            try:
                raise first_error
            finally:
                del first_error  # see `run()` of the runners
        return results

    def _locked(self) -> Flow[bool]:
        infos = yield from self._infos()
        return any(info.holders for info in infos)

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., BaseLock]:
        templates = [Template(name, signature) for name in self.names]

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseLock:
            named = copy.copy(self)
            named.names = _in_order(template.of_call(args, kwargs) for template in templates)
            named.name = ", ".join(named.names)
            return named

        return lock


class MultiAcquisition(CompositeAcquisition):
    """One acquisition of several mutexes, one after the other."""

    def acquire_parts(self) -> Flow[Sequence[Acquisition]]:
        deadline = self.call.wait_until
        while True:
            is_complete = yield from self._acquire_each()
            if is_complete and not any(part.hold and part.hold.lost for part in self.parts):
                return self.parts
            yield from self.release_unused(self.parts)
            # If one was lost during the wait for another, start again with the first.
            if not is_complete or (deadline is not None and clock.now() >= deadline):
                return ()

    def _acquire_each(self) -> Flow[bool]:
        self.parts = []  # an earlier attempt has released its parts
        for mutex in self.lock._parts():
            part = Acquisition(mutex, self.call, mutex._server(), is_part=True)
            part.was_queued = self.was_queued
            self.parts.append(part)
            hold = yield from part.acquire()
            if hold is None:
                return False
            self.was_queued = True  # the server is known to store locks
        return True


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(check_names(names)))
    if not ordered:
        raise ValueError(f"names must not be empty, got {names!r}")
    return tuple(ordered)
