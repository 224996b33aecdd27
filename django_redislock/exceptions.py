"""The exceptions. All are subclasses of redis-py's `LockError`."""

from typing import TYPE_CHECKING, Any

from redis import exceptions as redis

from .names import short_repr
from .text import short_duration

if TYPE_CHECKING:
    from .snapshots import Holder

LOSS = "its lease expired, max_hold passed, it was force-released, or Redis lost it"
"""Why a lock can be lost. A holder cannot know which of these happened."""


class LockError(redis.LockError):
    """The base class of the errors of locks.

    It is a subclass of redis-py's `LockError`, so that code for ``cache.lock()`` catches it. It is
    raised itself if a lock is used in a way that cannot work: its holder would wait for itself, or
    its name is in use for another lock type.

    Attributes:
        lock_name: The lock's name.
    """

    holder: "Holder | None" = None
    """The first holder at the time of the error, if the lock was not acquired in time."""

    held_as = ""
    """The lock type for which the name is in use, if another type was requested."""

    def __repr__(self) -> str:
        # Celery logs this text for a failed task, and redis-py 8 would leave out the message.
        return BaseException.__repr__(self)


class LockNotAcquired(LockError):
    """The lock was not acquired in time, so the block or the function did not run.

    `LockLost` is not a subclass, so ``except LockNotAcquired`` never catches the loss of a lock
    whose block has run.
    """

    expires_in: float | None = None
    """The seconds until the lease of the first holder expires, at the time of the error. None if
    unknown. A holder that is alive renews its lease, or releases the lock earlier."""


class LockNotOwnedError(LockError, redis.LockNotOwnedError):
    """The caller does not hold the lock, or no longer holds it."""


class LockLost(LockNotOwnedError):
    """The lock was lost while it was held.

    Its lease expired, `max_hold` passed, it was force-released, or Redis lost it. Another holder
    may be running.
    """


class AlreadyRunning(LockNotAcquired):
    """The lock that a single-instance task needs is already held, or is in cooldown.

    Attributes:
        name: The lock's name.
        task_id: The holder's task id. None if the holder is not a task, or is unknown.
        expires_in: The seconds until the lease or the cooldown ended, at the time of the conflict.
            None if unknown.
        held_by: The holder's ``host:pid``, and its thread in parentheses if that is not the main
            thread. None if unknown.
        in_cooldown: Whether the holder has released the lock and only `at_least_for` keeps it.
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
            return f"is held by task {short_repr(self.task_id)}"
        return f"is held by {self.held_by}" if self.held_by else "is already held"

    def __str__(self) -> str:
        return str(self.message)


class StaleLock(LockError):
    """A fenced write was rejected, because a newer holder has already written the row.

    Attributes:
        model: The label of the model, such as ``"bank.Account"``.
        pk: The primary key of the row.
        token: The fencing token of the write.
        found: The larger fencing token in the row. None if unknown.
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
            f"is older than {found or 'the token in the row'}",
            lock_name=lock_name,
        )
        self.model = model
        self.pk = pk
        self.token = token
        self.found = found
        self.args = (model, pk, token, found, lock_name)

    def __str__(self) -> str:
        return str(self.message)
