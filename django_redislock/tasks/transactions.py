"""The ends of the database transactions in which a task is sent."""

from collections.abc import Callable
from functools import partial
from weakref import finalize

from django.db import connections, transaction

TRANSACTION_SECONDS = 60
"""The lease of a queue lock until the commit of the transaction that sends the task."""


def open_transactions() -> list[str]:
    """Return the aliases of the databases with a transaction that is open here."""
    return [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]


def on_end(ended: Callable[[bool], None], using: str | None = None) -> None:
    """Call a function once when the transaction ends, with whether it was committed.

    After a rollback, also of a savepoint, it must not block or raise. Django has no signal for it:
    the function is called when Django discards the hook, in the midst of any other code.
    """
    transaction.on_commit(_Hook(ended), using=using, robust=True)


class _Hook:
    def __init__(self, ended: Callable[[bool], None]) -> None:
        self._committed = partial(ended, True)
        self._rolled_back = finalize(self, ended, False)
        self._rolled_back.atexit = False  # the lease of the queue lock expires soon

    def __call__(self) -> None:
        if self._rolled_back.detach():
            self._committed()
