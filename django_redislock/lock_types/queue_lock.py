"""A holding that no process keeps."""

import math
from dataclasses import replace

from .. import validators
from ..engine import protocol
from ..engine.renewer import Book, thread_book
from ..engine.runners import run
from ..identity import Task, info_text
from .base import BaseLock


class Place:
    """A holding of `lock` that no process keeps, for something that is on its way.

    One process takes it; any that knows the token can leave it, or take it over with a lock
    whose `predecessor` is that token. Nothing renews it, and it lasts for ten years at most.
    `task` is who is told as its holder, and the metadata say that it is ``queued``, and what
    else there is to be told.
    """

    def __init__(self, lock: BaseLock, token: str, task: Task, **metadata: object) -> None:
        self.lock = lock
        self.metadata = {"queued": True, **metadata}
        self.token = validators.token("token", token)
        self.task = task

    def take(self, seconds: float) -> bool:
        """Hold it for so long, and say whether that succeeded. To take what is held by this
        token already makes it last as long at least."""
        return bool(self._hold(self._want(seconds)))

    def take_from(self, predecessor: str, seconds: float) -> bool:
        """Take over from another token, and say whether that held it; if not, nothing is held."""
        granted = self._hold(replace(self._want(seconds), predecessor=predecessor))
        if granted and not granted.took_over:
            self.leave()
        return granted is not None and granted.took_over

    def inherit(self, seconds: float) -> None:
        """Take over what `lock` holds, which thereby lets go of it. Raises as its `pass_on`."""
        self._reclaim()
        self.lock.pass_on(self._want(seconds))

    def leave(self) -> bool:
        """Let go, and say whether it was held by this token. There is no least time: that is
        for what has begun. If Redis is away, it is tried again later, and the error raised."""
        server = self.lock._server()
        try:
            return run(server.client, protocol.release(server.keys.of(self.lock.name), self.token))
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Have it released as soon as Redis answers: for where it is not known whether it is held,
        or not even whether it is yet to be taken."""
        book = self._book()
        lock = self.lock
        lease = lock._new_lease(book, lock.name, self.token, lock._owner())
        lease.seconds = math.inf  # for as long as is tried at all
        book.give_back(lease)

    def _hold(self, want: protocol.Want) -> protocol.Granted | None:
        self._reclaim()
        return run(self.lock._server().client, protocol.hold_for(want))

    def _reclaim(self) -> None:
        # An earlier attempt with this token may have been given back, and that be under way yet.
        self._book().reclaim(self.lock.name, self.token)

    def _book(self) -> Book:
        return thread_book(self.lock._server(), self.lock.name)

    def _want(self, seconds: float) -> protocol.Want:
        keys = self.lock._server().keys.of(self.lock.name)
        info = info_text(
            self.metadata, renewed=False, on_conflict=self.lock.on_conflict, task=self.task
        )
        return self.lock._want(keys, self.token, min(seconds, validators.MAX_LEASE_SECONDS), info)
