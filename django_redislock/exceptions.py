"""The errors of a lock, one family under redis-py's own."""

from typing import Any

from redis import exceptions as redis


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
    """Another execution holds the place of this task.

    `name` is the lock's, `task_id` the holder's Celery task id (None if it is
    no task, or is just gone), `expires_in` the seconds left of its lease as
    they stood when the conflict was met (None if unknown).
    """

    def __init__(
        self, name: str, task_id: str | None = None, expires_in: float | None = None
    ) -> None:
        super().__init__(f"Lock {name!r} is held by {holder_text(task_id)}", lock_name=name)
        self.name = name
        self.task_id = task_id
        self.expires_in = expires_in
        # Result backends store the arguments and call the class with them.
        self.args = (name, task_id, expires_in)

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


def holder_text(task_id: str | None) -> str:
    return f"task {task_id!r}" if task_id else "another holder"
