"""Helpers of the tests with fenced rows."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.fencing.models import Account

OLD, NOW, NEW = 10, 20, 30
"""Fencing tokens of three holders, one after the other."""


def account(using: str, *, fence: int = 0, **values: object) -> Account:
    return Account.objects.using(using).create(fence=fence, **values)


def stored(instance):
    """Return the row as it is in the database."""
    return type(instance)._base_manager.using(instance._state.db).get(pk=instance.pk)


@contextmanager
def writes(using: str) -> Iterator[list[str]]:
    """Collect the SQL that changes rows inside the block."""
    found: list[str] = []
    with CaptureQueriesContext(connections[using]) as queries:
        yield found
    asked = [each["sql"] for each in queries.captured_queries]
    found += [sql for sql in asked if sql.startswith(("UPDATE", "INSERT", "DELETE"))]
