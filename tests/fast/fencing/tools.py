"""What the tests of this folder share."""

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
    """The row as it is now, read anew."""
    return type(instance)._base_manager.using(instance._state.db).get(pk=instance.pk)


@contextmanager
def writes(using: str) -> Iterator[list[str]]:
    """The SQL that changes rows inside the block; to be read after it."""
    found: list[str] = []
    with CaptureQueriesContext(connections[using]) as queries:
        yield found
    asked = [each["sql"] for each in queries.captured_queries]
    found += [sql for sql in asked if sql.startswith(("UPDATE", "INSERT", "DELETE"))]
