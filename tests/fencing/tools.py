"""Helpers of the tests with fenced rows."""

from tests.fencing.models import Account

OLD, NOW, NEW = 10, 20, 30
"""Fencing tokens of three holders, one after the other."""


def account(using: str, *, fence: int = 0, **values: object) -> Account:
    return Account.objects.using(using).create(fence=fence, **values)


def stored(instance):
    """Return the row as it is in the database."""
    return type(instance)._base_manager.using(instance._state.db).get(pk=instance.pk)
