"""A hold without a process, for a task that is queued."""

import math
from dataclasses import replace

from .. import validators
from ..engine import protocol
from ..engine.renewer import thread_renewer
from ..engine.runners import run
from ..engine.store import AcquireRequest
from ..engine.timing import UNANSWERED_REQUEST_SECONDS
from ..exceptions import LockError
from ..identity import Task, payload_text
from .base import BaseLock


class QueueLock:
    """A hold of `lock` that no process renews, for a task that is queued.

    One process acquires it. Any process that knows the token can release it, or take it over with
    a lock whose `predecessor` is that token. It lasts 10 years at most.

    Args:
        lock: The lock to hold.
        token: The lock token.
        task: The name and id of the task that is shown as the holder.
        **metadata: Further metadata of the holder, in addition to ``queued=True``.
    """

    def __init__(self, lock: BaseLock, token: str, task: Task, **metadata: object) -> None:
        self.lock = lock
        self.metadata = {"queued": True, **metadata}
        self.token = validators.token("token", token)
        self.task = task

    def acquire(self, seconds: float) -> bool:
        """Hold the lock for `seconds`, and return whether that succeeded.

        If the token already holds it, the hold lasts at least `seconds` from now.
        """
        return bool(self._reserve(self._request(seconds)))

    def take_over(self, predecessor: str, seconds: float) -> bool:
        """Take over the hold of another token, and return whether there was one.

        If there was none, the lock is not held afterwards. If the reply is lost, the request is
        not repeated.
        """
        request = replace(self._request(seconds), predecessor=predecessor, once=True)
        acquired = self._reserve(request)
        if acquired and not acquired.took_over:
            self.release()
        return acquired is not None and acquired.took_over

    def set_lease(self, seconds: float) -> bool:
        """Hold the lock for `seconds` from now, and return whether the token holds it."""
        server, seconds = self.lock._server(), min(seconds, validators.MAX_LEASE_SECONDS)
        flow = protocol.renew(server.keys.of(self.lock.name), self.token, seconds, "set")
        return bool(run(server.client, flow))

    def inherit(self, seconds: float) -> None:
        """Take over the hold of `lock`. Raises the errors of `BaseLock.transfer()`."""
        self._cancel_release()
        self.lock.transfer(self._request(seconds))

    def release(self) -> bool:
        """Release the lock without a cooldown, and return whether the token held it.

        If Redis is unreachable, the release is retried in the background, and the error raised.
        """
        server = self.lock._server()
        try:
            return run(server.client, protocol.release(server.keys.of(self.lock.name), self.token))
        except BaseException:
            self.release_later()
            raise

    def release_later(self) -> None:
        """Release the lock in the background.

        The renewer tries for a minute only: later, another process may hold the lock with the same
        token, because the token follows from the id of the task.
        """
        server = self.lock._server()
        keys = server.keys.of(self.lock.name)
        renewer = thread_renewer(server)
        renewer.release_later(keys, self.token, UNANSWERED_REQUEST_SECONDS)

    def _reserve(self, request: AcquireRequest) -> protocol.Acquired | None:
        self._cancel_release()
        try:
            return run(self.lock._server().client, protocol.acquire(request, -math.inf))
        except LockError:  # it is in use as another lock type
            return None
        except BaseException:
            self.release_later()  # Redis may have executed it, or may still do so
            raise

    def _cancel_release(self) -> None:
        # An earlier attempt with this token may still be released in the background.
        server = self.lock._server()
        thread_renewer(server).cancel_release(self.lock.name, self.token)

    def _request(self, seconds: float) -> AcquireRequest:
        lock = self.lock
        return AcquireRequest(
            keys=lock._server().keys.of(lock.name),
            token=self.token,
            kind=lock.kind,
            capacity=lock.capacity,
            weight=lock.weight,
            lease=min(seconds, validators.MAX_LEASE_SECONDS),
            payload=payload_text(
                self.metadata, renewed=False, on_conflict=lock.on_conflict, task=self.task
            ),
            min_replicas=lock.min_replicas,
        )
