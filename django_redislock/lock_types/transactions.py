"""Locks and database transactions: a lock is released after the commit."""

import copy
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from django.conf import settings
from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..introspection import is_async, is_generator

if TYPE_CHECKING:
    from .mutex import Mutex

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_redislock")


class _Entered(threading.local):
    """The blocks that a thread has entered and not left, the innermost last."""

    def __init__(self) -> None:
        self.blocks: list[AbstractContextManager[None]] = []


class Atomic:
    """A lock around a database transaction. Created by `LockManager.atomic`."""

    def __init__(self, lock: "Mutex", database: str) -> None:
        self._lock = lock
        self._database = database
        self._entered = _Entered()

    def __copy__(self) -> "Atomic":
        return type(self)(copy.copy(self._lock), self._database)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Atomic":
        return type(self)(copy.deepcopy(self._lock, memo), self._database)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._lock, self._database)

    def __enter__(self) -> "Mutex":
        block = self._block()
        try:
            block.__enter__()
            # Not append(), because a signal handler may raise after that call.
            self._entered.blocks += [block]
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        return self._lock

    def __exit__(self, *exc: Any) -> bool | None:
        # No local variable: a traceback would keep the block open.
        return self._entered.blocks.pop().__exit__(*exc)

    @contextmanager
    def _block(self) -> Iterator[None]:
        """Enter the lock and the transaction.

        If an interrupt drops this generator, Python closes it, which leaves both.
        """
        with self._lock, transaction.atomic(using=self._database):
            yield

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if is_async(function) or is_generator(function):
            raise TypeError(
                f"locks.atomic() cannot decorate {function!r}: its body runs after the "
                "transaction has ended. Use 'with locks.atomic(...)' in a synchronous function."
            )
        return self._lock(transaction.atomic(using=self._database)(function))


def is_open(alias: str) -> bool:
    """Return whether a transaction of a database is open. The one of a `TestCase` does not count.

    Raises:
        TransactionManagementError: Autocommit is off, so Django calls no `on_commit` function.
    """
    connection = connections[alias]
    if connection.in_atomic_block:  # autocommit is off inside it
        is_manual = not connection.commit_on_exit
    else:
        is_manual = connection.connection is not None and not connection.autocommit
    if is_manual:
        raise transaction.TransactionManagementError(
            f"release_on_commit needs autocommit, which is off for database {alias!r}. Call "
            "release() after the commit instead."
        )
    return _in_transaction(connection)


def when_it_ends(alias: str, release: Callable[[], None]) -> None:
    """Call `release` once the outermost transaction is committed or rolled back."""

    def after_commit() -> None:
        finalizer()

    # Django has no hook for a rollback, but it drops the functions that wait for the commit.
    finalizer = weakref.finalize(after_commit, release)
    transaction.on_commit(after_commit, using=alias, robust=True)


def warn_if_open(name: str) -> None:
    """Log once per process that a lock was released inside an open transaction."""
    global _warned
    if _warned or not any(map(_in_transaction, _used.connections)):
        return
    _warned = True
    logger.warning(
        "Lock released inside an open transaction: name=%r. The next holder cannot see its "
        "changes yet. Use release_on_commit=True or locks.atomic(). Logged once per process.",
        name,
    )


_warned = False


class _Used(threading.local):
    """The database connections that a thread has used. To ask Django for them costs too much."""

    def __init__(self) -> None:
        used = connections.all(initialized_only=True) if settings.configured else ()
        self.connections = list(used)


_used = _Used()


@receiver(connection_created)
def _note_connection(connection: Any, **kwargs: object) -> None:
    if connection not in _used.connections:
        _used.connections.append(connection)


def _in_transaction(connection: Any) -> bool:
    if not connection.in_atomic_block:
        return False
    try:
        # Django refuses a durable block inside a transaction, unless a `TestCase` began it.
        # Without a savepoint, the block makes no query.
        with transaction.atomic(using=connection.alias, savepoint=False, durable=True):
            return False
    except RuntimeError:
        return True
