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
from .exceptions import LockNotOwnedError
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
    """The event that is set when the lock is lost."""

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
        return copied

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_is_over"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._is_over = self._new_event()

    def _new_event(self) -> Any:
        raise NotImplementedError

    def next_term(self, *, is_first: bool) -> Self:
        """Return a new, unheld lock for the next term."""
        term = copy.copy(self)
        # The first acquisition fails at once if the server cannot be reached, because its address
        # may be wrong. Later ones wait until the server is back.
        if not is_first and term.blocking_timeout is None:
            term.blocking_timeout = MAX_LEASE_SECONDS
        return term


class Term(AnyTerm):
    """A term of office in synchronous code: the lock that the leader holds.

    `fence_token` is larger in each term than in all earlier ones. `lost` is true once the leader
    is deposed: its lease expired, `max_hold` passed, or its lock was force-released.
    """

    _is_over: threading.Event

    def _new_event(self) -> threading.Event:
        return threading.Event()

    def wait(self, seconds: Seconds) -> bool:
        """Wait between two pieces of work, but not longer than the term lasts.

        Args:
            seconds: How long to wait.

        Returns:
            Whether the term has ended, because the lock was lost.
        """
        limit = _waiting_time(seconds)
        if not self.lost:
            self._is_over.wait(limit)
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
        self._sigterm = SigtermHandler()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Term:
        """Step down, and wait until this process leads again.

        Raises:
            LockNotAcquired: Another process leads, and `blocking_timeout` is over.
            redis.exceptions.RedisError: Redis cannot be reached the first time, or not within
                `blocking_timeout`, or it refuses the request.
        """
        self._step_down()
        self._sigterm.install()
        term = self._candidate.next_term(is_first=self._is_first)
        try:
            self._term = term  # first, so that an interrupt after the acquisition finds it
            term.__enter__()
        except BaseException:
            self.close()
            raise
        self._is_first = False
        _log_term(term)
        return term

    def close(self) -> None:
        """Step down, so that the next candidate leads at once.

        Call it in the thread that leads.
        """
        try:
            self._step_down()
        finally:
            self._sigterm.remove()

    def __del__(self) -> None:
        self.close()

    def _step_down(self) -> None:
        term = self._term
        self._term = None
        if term is None:
            return
        try:
            term.release()
        except LockNotOwnedError:
            pass  # it was deposed, which was logged then, or has released the lock itself
        except RedisError as error:
            _log_not_released(term, error)


class AsyncTerms:
    """An async iterator over terms of office. Created by `LockManager.aleader`. See `Terms`."""

    def __init__(self, candidate: AsyncTerm) -> None:
        self._candidate = candidate
        self._term: AsyncTerm | None = None
        self._is_first = True
        self._sigterm = LoopSigtermHandler()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncTerm:
        """Async version of `Terms.__next__()`."""
        await self._astep_down()
        self._sigterm.install()
        term = self._candidate.next_term(is_first=self._is_first)
        try:
            self._term = term
            await term.__aenter__()
        except BaseException:
            await self.aclose()
            raise
        self._is_first = False
        _log_term(term)
        return term

    async def aclose(self) -> None:
        """Step down, so that the next candidate leads at once.

        Call it in the task that leads.
        """
        try:
            await self._astep_down()
        finally:
            self._sigterm.remove()

    def __del__(self) -> None:
        # A loop that is left does not wait for anything, and the event loop may be about to end.
        # So this steps down with one synchronous request, in the task that leads.
        self._sigterm.remove()
        term = self._term
        if term is None:
            return
        try:
            term.release()
        except LockNotOwnedError:
            pass
        except RedisError as error:
            _log_not_released(term, error)

    async def _astep_down(self) -> None:
        term = self._term
        self._term = None
        if term is None:
            return
        try:
            await term.arelease()
        except LockNotOwnedError:
            pass
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
