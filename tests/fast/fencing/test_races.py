"""A write that waits for another write of the same row checks the fence again."""

import pytest
from django.db import connections, transaction

from django_redislock import StaleLock
from django_redislock.fencing import fenced
from tests.fencing.models import Account
from tests.fencing.tools import NEW, NOW, account, stored
from tests.lock_tools import start
from tests.tools import wait_until

pytestmark = pytest.mark.parametrize("using", ["postgres"], indirect=True)


def update(row, token, balance):
    rows = Account.objects.using(row._state.db).filter(pk=row.pk)
    fenced(rows, token).update(balance=balance)


def save(row, token, balance):
    mine = Account(pk=row.pk, balance=balance)
    fenced(mine, token).save(using=row._state.db)


def delete(row, token, balance):
    fenced(row, token).delete()


def write_while_another_waits(row, first, way, second):
    """Update the row in a transaction, while a thread waits to write it in this way. Return the
    thread's future."""

    def work():
        try:
            way(row, second, balance=second)
        finally:
            connections.close_all()

    def waits_for_a_row():
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return cursor.fetchone()[0] == 1

    using = row._state.db
    with transaction.atomic(using=using):
        update(row, first, balance=first)
        waiting = start(work)
        wait_until(waits_for_a_row)
    return waiting


@pytest.mark.parametrize("way", [update, save, delete])
def test_a_stale_write_that_waits_for_the_newer_one_is_refused(using, way):
    row = account(using)
    late = write_while_another_waits(row, NEW, way, NOW)
    with pytest.raises(StaleLock) as caught:
        late.result(60)
    assert (caught.value.token, caught.value.found) == (NOW, NEW)
    assert (stored(row).balance, stored(row).fence) == (NEW, NEW)


@pytest.mark.parametrize("way", [update, save])
def test_a_newer_write_that_waits_for_the_stale_one_goes_through(using, way):
    row = account(using)
    write_while_another_waits(row, NOW, way, NEW).result(60)
    assert (stored(row).balance, stored(row).fence) == (NEW, NEW)
