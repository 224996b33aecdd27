"""A holding as its holder knows it."""

import asyncio
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from .. import clock
from ..connection import Server
from ..holder import Owner, current_owner, is_alive
from ..keys import LockKeys

if TYPE_CHECKING:
    from .renewal import Book


class Lease:
    """One token's holding of one lock, judged on the holder's own clock.

    `deadline` counts from before the request that got or renewed the lease was
    sent, so it comes before Redis's. Past it the lease is lost, for good.
    """

    def __init__(
        self,
        server: Server,
        keys: LockKeys,
        token: str,
        seconds: float,
        *,
        kind: str,
        weight: int,
        at_least_for: float = 0,
        book: "Book",
        renewed: bool,
        when_lost: "Callable[[Lease], None]",
    ) -> None:
        self.server = server
        self.keys = keys
        self.token = token
        self.seconds = seconds
        self.kind = kind
        self.weight = weight
        self.at_least_for = at_least_for
        self.entries = 1
        self.deferred = 0
        self.place: _Place | None = None
        self.book = book
        self.fence_token = 0
        self.deadline = 0.0
        self.due = 0.0
        self.early = 0.0
        self._when_lost = when_lost
        self._owner = weakref.ref(current_owner())
        self._pid = os.getpid()
        self._renewed = renewed
        self.found_by_holder = False
        self._aborted = False
        self._lost = False
        self._over = False
        self._told = False
        self._began = 0.0

    def begin(self, fence_token: int, deadline: float) -> None:
        """The lock was acquired, and is this lease's until `deadline`."""
        self.fence_token = fence_token
        self._began = clock.now()
        self.keep(deadline)

    def keep(self, deadline: float) -> None:
        """The lease now runs until `deadline`: look at it after a third of that, or a little
        earlier together with others."""
        left = deadline - clock.now()
        self.deadline = deadline
        self.due = deadline - left * 2 / 3 if self._renewed else deadline
        self.early = left / 10

    def at_least(self, seconds: float) -> float:
        """So many seconds, or as many as are left of its least time."""
        return max(seconds, self._began + self.at_least_for - clock.now())

    def put_off(self, seconds: float) -> None:
        """Look at it again after so long, and not before."""
        self.due = clock.now() + seconds
        self.early = 0.0

    def end(self) -> None:
        """The holder lets go: what becomes of the lock is no longer its concern."""
        self._lost = self.lost
        self._over = True

    def lose(self, *, found_by_holder: bool = False) -> None:
        """It is lost; tell so, once. A holder that finds it out itself gets an error for it."""
        self._lost = True
        self.found_by_holder = found_by_holder
        if not self._told:
            self._told = True
            self._when_lost(self)

    def abort(self) -> None:
        """Cancel the asyncio task that holds it. A thread can't be: it has to look at `lost`."""
        task = self._owner()
        if self.book.on_loop and isinstance(task, asyncio.Task):
            self._aborted = True
            task.cancel()

    def takes_back(self, *errors: BaseException | None) -> bool:
        """Whether one of these errors is the cancellation that `abort` asked for, and no other
        is asked for; it is then taken back, as `asyncio.timeout` does."""
        task = self._owner()
        if not (self._aborted and isinstance(task, asyncio.Task)):
            return False
        self._aborted = False
        others = task.uncancel()
        return not others and any(isinstance(each, asyncio.CancelledError) for each in errors)

    @property
    def lost(self) -> bool:
        if not self._over and clock.now() >= self.deadline:
            self._lost = True
        return self._lost

    @property
    def wants_renewal(self) -> bool:
        """An owner that is gone can't release, so what it held is left to run out."""
        return self._renewed and is_alive(self._owner)

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy: the lease is its parent's."""
        return self._pid != os.getpid()


_Place: TypeAlias = tuple[Server, str, Owner]
_held: WeakValueDictionary[_Place, Lease] = WeakValueDictionary()


def remember(lease: Lease) -> None:
    lease.place = lease.server, lease.keys.name, current_owner()
    _held[lease.place] = lease


def forget(lease: Lease) -> None:
    if lease.place and _held.get(lease.place) is lease:
        del _held[lease.place]


def held_by_caller(server: Server, name: str) -> Lease | None:
    """The lease by which this thread, task or greenlet holds that lock, lost or not."""
    lease = _held.get((server, name, current_owner()))
    return None if lease is None or lease.inherited else lease
