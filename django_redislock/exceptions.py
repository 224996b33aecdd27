"""The errors of a lock, one family under redis-py's own."""

from typing import Any

from redis import exceptions as redis

from .text import short_duration


class LockError(redis.LockError):
    """A lock could not be acquired, or was asked for what it can't do.

    A subclass of redis-py's error of the same name, so that code written for
    ``cache.lock()`` catches it. `lock_name` is the lock's name.
    """

    held_as = ""
    """The kind as which it is held, or waited for, where it was asked for as another."""

    def __repr__(self) -> str:
        # redis-py 8 has "server:" there, and no message; Celery logs this of a task that failed.
        return BaseException.__repr__(self)


class LockNotOwnedError(LockError, redis.LockNotOwnedError):
    """The lock is not, or no longer, this caller's."""


class LockLost(LockNotOwnedError):
    """The lock was held and went away before it was released.

    Its lease ran out, an operator released it, or Redis lost it. Another
    holder may have been let in meanwhile.
    """


class AlreadyRunning(LockError):
    """The lock that a single-instance task needs is already held, or is in cooldown.

    `name` is the lock's name. `task_id` is the holder's Celery task id (None if the
    holder is not a task, or is unknown). `held_by` is the holder's ``host:pid`` (None if
    unknown). `in_cooldown` says whether the holder has released the lock and only
    `at_least_for` keeps it. `expires_in` is the number of seconds until the lease or the
    cooldown ended, at the time of the conflict (None if unknown).
    """

    def __init__(
        self,
        name: str,
        task_id: str | None = None,
        expires_in: float | None = None,
        held_by: str | None = None,
        in_cooldown: bool = False,
    ) -> None:
        self.name = name
        self.task_id = task_id
        self.expires_in = expires_in
        self.held_by = held_by
        self.in_cooldown = in_cooldown
        super().__init__(f"Lock {name!r} {self.reason}", lock_name=name)
        # Result backends store the arguments and call the class with them.
        self.args = (name, task_id, expires_in, held_by, in_cooldown)

    @property
    def reason(self) -> str:
        """A phrase that follows the lock's name and says why the lock is not free."""
        if self.in_cooldown and self.expires_in is not None:
            return f"is in cooldown for {short_duration(self.expires_in)}"
        if self.task_id:
            return f"is held by task {self.task_id!r}"
        return f"is held by {self.held_by}" if self.held_by else "is already held"

    def __str__(self) -> str:
        return str(self.message)


class StaleLock(LockError):
    """A fenced write came too late: a newer holder of the lock wrote before.

    `token` is the fencing token of the write, `found` the greater one that the row had
    (None if unknown); `model` is the row's (``"bank.Account"``), `pk` its primary key.
    """

    def __init__(
        self,
        model: str,
        pk: Any,
        token: int,
        found: int | None = None,
        lock_name: str | None = None,
    ) -> None:
        lock = f" of lock {lock_name!r}" if lock_name else ""
        super().__init__(
            f"{model} {pk!r} was written by a newer holder: fencing token {token}{lock} "
            f"is older than {found or 'the one found'}",
            lock_name=lock_name,
        )
        self.model = model
        self.pk = pk
        self.token = token
        self.found = found
        self.args = (model, pk, token, found, lock_name)

    def __str__(self) -> str:
        return str(self.message)
