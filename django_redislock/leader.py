"""Leader election: one process at a time leads, and the others stand by.

A leader is the holder of a mutex, and a term of office is one hold of it. So everything that is
true for locks is true for leaders: the queue of the candidates, the lease, the fencing token, the
listings and the history.
"""

import asyncio
import copy
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, TypedDict, Unpack

from redis.exceptions import RedisError

from .backends import Server
from .engine.events import InterruptSafeEvent
from .engine.registry import AnyHold
from .exceptions import LockNotOwnedError
from .identity import Owner, current_owner
from .lock_types import BaseLock
from .lock_types.mutex import Mutex
from .sigterm import LoopSigtermHandler, SigtermHandler
from .text import error_text
from .validators import MAX_LEASE_SECONDS, Seconds, check_options, seconds

logger = logging.getLogger("django_redislock")

ROLE: Mapping[str, Any] = {"role": "leader"}
"""Added to the metadata, so that listings show who is a leader or a candidate."""


class LeaderOptions(TypedDict, total=False):
    """The options of `LockManager.leader`."""

    timeout: Seconds | None
    blocking_timeout: Seconds | None
    max_hold: Seconds | None
    min_replicas: int
    metadata: Mapping[str, Any] | None
    on_lost: Callable[[BaseLock], object] | None


class AnyTerm(Mutex):
    """A term of office: the held lock of a leader."""

    _is_over: Any
    """The event that is set when the lock is lost or released."""

    _leader: "Owner | None" = None
    """The thread or task that leads. All others act for it: they can end the term."""

    def __init__(
        self, server: Callable[[], Server], name: str, **options: Unpack[LeaderOptions]
    ) -> None:
        check_options("leader", options, LeaderOptions.__annotations__)
        on_lost: object = options.get("on_lost")
        if on_lost == "abort":
            raise ValueError(
                "on_lost='abort' cannot be used for a leader, because it would end the loop over "
                "the terms. Use `await term.wait()`, or check `term.lost`."
            )
        super().__init__(server, name, **options)
        self.metadata = {**ROLE, **self.metadata}
        self._user_on_lost = self.on_lost
        self.on_lost = _end_term
        self._is_over = self._new_event()

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied._is_over = self._new_event()
        copied._leader = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_is_over"]
        state.pop("_leader", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._is_over = self._new_event()

    @property
    def lost(self) -> bool:
        """Whether the term is over, because the lock was lost or released."""
        hold = self._visible_hold()
        return hold is None or hold.lost

    def _new_event(self) -> Any:
        raise NotImplementedError

    def _owner(self, caller: "Owner | None" = None) -> Owner:
        return self._leader or super()._owner(caller)

    def _leave(self, found: AnyHold | None) -> None:
        try:
            super()._leave(found)
        finally:
            self._is_over.set()

    async def _aleave(self, found: AnyHold | None) -> None:
        try:
            await super()._aleave(found)
        finally:
            self._is_over.set()

    def next_term(self, *, is_first: bool) -> Self:
        """Return a new, unheld lock for the next term of the caller."""
        term = copy.copy(self)
        term._leader = current_owner()
        # The first acquisition fails at once if the server cannot be reached, because its address
        # may be wrong. Later ones wait until the server is back.
        if not is_first and term.blocking_timeout is None:
            term.blocking_timeout = MAX_LEASE_SECONDS
        return term


class Term(AnyTerm):
    """A term of office in synchronous code: the lock that the leader holds.

    `fence_token` is larger in each term than in all earlier ones. `lost` is true once the term is
    over: its lease expired, `max_hold` passed, its lock was force-released, or your code released
    it or called `Terms.close()`.
    """

    _is_over: InterruptSafeEvent

    def _new_event(self) -> InterruptSafeEvent:
        return InterruptSafeEvent()

    def wait(self, seconds: Seconds) -> bool:
        """Wait between two pieces of work, but not longer than the term lasts.

        Args:
            seconds: How long to wait.

        Returns:
            Whether the term is over, as `lost`.
        """
        limit = _waiting_time(seconds)
        if not self.lost and self._is_over.wait(limit):
            self._is_over.set()  # for other threads that wait
        return self.lost


class AsyncTerm(AnyTerm):
    """A term of office in async code. See `Term`."""

    _is_over: asyncio.Event

    def _new_event(self) -> asyncio.Event:
        return asyncio.Event()

    async def wait(self, seconds: Seconds) -> bool:
        """Async version of `Term.wait()`."""
        limit = _waiting_time(seconds)
        if not self.lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._is_over.wait()
        return self.lost


class Terms:
    """An iterator over terms of office. Created by `LockManager.leader`.

    The end of the loop body steps down and stands for the next term. `close()` steps down for
    good. Leaving the loop does so, too, unless you keep a reference to this object.
    """

    def __init__(self, candidate: Term) -> None:
        self._candidate = candidate
        self._term: Term | None = None
        self._is_first = True
        self._is_closed = False
        self._sigterm = SigtermHandler()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Term:
        """Step down, and wait until this process leads again.

        Raises:
            StopIteration: `close()` was called.
            LockNotAcquired: Another process leads, and `blocking_timeout` is over.
            redis.exceptions.RedisError: Redis cannot be reached the first time, or not within
                `blocking_timeout`, or it refuses the request.
        """
        self._step_down()
        try:
            return self._next_term()
        except BaseException:
            self._leave_loop()
            raise

    def close(self) -> None:
        """Step down, so that the next candidate leads at once, and end the loop.

        Any thread may call it, and so may a signal handler. If the loop is in a term, `term.lost`
        becomes true, and the loop ends with its body. If it waits for a term, it ends when it
        would lead.
        """
        self._is_closed = True
        self._leave_loop()

    def __del__(self) -> None:
        self.close()

    def _next_term(self) -> Term:
        if self._is_closed:
            raise StopIteration
        self._sigterm.install()
        term = self._candidate.next_term(is_first=self._is_first)
        self._term = term  # first, so that an interrupt after the acquisition finds it
        term.__enter__()
        self._is_first = False
        if self._is_closed:  # by another thread
            raise StopIteration
        _log_term(term)
        return term

    def _leave_loop(self) -> None:
        try:
            self._step_down()
        finally:
            self._sigterm.remove()

    def _step_down(self) -> None:
        if self._term:
            _release(self._term)


class AsyncTerms:
    """An async iterator over terms of office. Created by `LockManager.aleader`. See `Terms`."""

    def __init__(self, candidate: AsyncTerm) -> None:
        self._candidate = candidate
        self._term: AsyncTerm | None = None
        self._is_first = True
        self._is_closed = False
        self._sigterm = LoopSigtermHandler()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncTerm:
        """Async version of `Terms.__next__()`."""
        await self._astep_down()
        try:
            return await self._anext_term()
        except BaseException:
            await self._aleave_loop()
            raise

    async def aclose(self) -> None:
        """Step down, so that the next candidate leads at once, and end the loop.

        Any task of the event loop may call it, as for `Terms.close()`. To end a loop that waits
        for a term at once, cancel its task.
        """
        self._is_closed = True
        await self._aleave_loop()

    def __del__(self) -> None:
        # A loop that is left does not wait for anything, and the event loop may be about to end.
        # So this steps down with one synchronous request.
        try:
            if self._term:
                _release(self._term)
        finally:
            self._sigterm.remove()

    async def _anext_term(self) -> AsyncTerm:
        if self._is_closed:
            raise StopAsyncIteration
        self._sigterm.install()
        term = self._candidate.next_term(is_first=self._is_first)
        self._term = term
        await term.__aenter__()
        self._is_first = False
        if self._is_closed:
            raise StopAsyncIteration
        _log_term(term)
        return term

    async def _aleave_loop(self) -> None:
        try:
            await self._astep_down()
        finally:
            self._sigterm.remove()

    async def _astep_down(self) -> None:
        if self._term is None:
            return
        try:
            await self._term.arelease()
        except LockNotOwnedError:
            pass
        except RedisError as error:
            _log_not_released(self._term, error)


def _release(term: AnyTerm) -> None:
    try:
        term.release()
    except LockNotOwnedError:
        pass  # it is over: the leader was deposed, which was logged then, or has stepped down
    except RedisError as error:
        _log_not_released(term, error)


def _end_term(term: Any) -> None:
    """Wake `wait()`, and call the `on_lost` function of the user."""
    term._is_over.set()
    if term._user_on_lost:
        term._user_on_lost(term)


def _waiting_time(value: Seconds) -> float:
    number = seconds("seconds", value)
    if number < 0:
        raise ValueError(f"seconds must not be negative, got {value!r}")
    return min(number, threading.TIMEOUT_MAX)


def _log_term(term: AnyTerm) -> None:
    logger.info("Leader elected: name=%r fence_token=%s", term.name, term.fence_token)


def _log_not_released(term: AnyTerm, error: RedisError) -> None:
    logger.warning(
        "Leader cannot step down, its lease will expire: name=%r error=%s",
        *(term.name, error_text(error)),
    )
