"""Instances: save() and delete()."""

import pytest
from django.db import DatabaseError, IntegrityError
from django.db.models import F

from django_redislock import StaleLock
from django_redislock.fencing import fenced
from tests.fencing.models import Account, Parcel, Savings
from tests.fencing.tools import NEW, NOW, OLD, account, stored


def test_a_stale_save_changes_neither_row_nor_instance(using):
    row = account(using, balance=1, fence=OLD)
    Account.objects.using(using).filter(pk=row.pk).update(fence=NEW, balance=2)

    row.balance = 5
    row.fence = 0  # the fence of the instance is ignored
    for instance in (row, Account(pk=row.pk, balance=5)):
        with pytest.raises(StaleLock) as caught:
            fenced(instance, NOW).save(using=using)
        error = caught.value
        assert (error.pk, error.token, error.found) == (row.pk, NOW, NEW)

    assert row.fence == 0
    assert (stored(row).balance, stored(row).fence) == (2, NEW)


@pytest.mark.parametrize("model", [Account, Parcel, Savings])
def test_a_new_row_is_inserted(using, model):
    row = model()
    fenced(row, NOW).save(using=using)
    assert row.fence == stored(row).fence == NOW
    fenced(row, NEW).save()
    assert stored(row).fence == NEW


def test_an_instance_with_its_own_key_writes_an_existing_row_unless_it_must_insert(using):
    row = account(using, balance=1)
    late = Account(pk=row.pk, balance=5)
    with pytest.raises(IntegrityError):
        fenced(late, NOW).save(force_insert=True, using=using)
    assert (late.fence, stored(row).balance, stored(row).fence) == (0, 1, 0)
    fenced(late, NOW).save(using=using)
    assert (late.fence, stored(row).balance, stored(row).fence) == (NOW, 5, NOW)


@pytest.mark.parametrize("options", [{}, {"update_fields": ["balance"]}, {"force_update": True}])
def test_a_deleted_row_is_not_inserted_again(using, options):
    row = account(using, fence=OLD)
    Account.objects.using(using).all().delete()
    with pytest.raises(DatabaseError, match=f"fencing.Account {row.pk} does not exist"):
        fenced(row, NOW).save(**options)
    assert row.fence == OLD
    assert not Account.objects.using(using).exists()


def test_update_fields_include_the_fence(using):
    row = account(using, balance=1, note="old")
    row.balance, row.note = 5, "new"
    fenced(row, OLD).save(update_fields=[])
    assert (row.fence, stored(row).fence) == (0, 0)
    fenced(row, NOW).save(update_fields=["balance"])
    found = stored(row)
    assert (found.balance, found.note, found.fence, row.fence) == (5, "old", NOW, NOW)


def test_a_part_of_a_row_is_saved(using):
    pk = account(using, balance=1, note="old").pk
    row = Account.objects.using(using).only("balance").get(pk=pk)
    row.balance = 5
    fenced(row, NOW).save()
    assert (row.fence, stored(row).balance, stored(row).note) == (NOW, 5, "old")

    row = Account.objects.using(using).only("balance").get(pk=pk)
    with pytest.raises(StaleLock):
        fenced(row, OLD).save()
    assert "fence" in row.get_deferred_fields()


def test_the_save_method_of_the_model_is_called(using):
    row = account(using, note="hush", balance=1, fence=OLD)
    row.balance = F("balance") + 4
    fenced(row, NOW).save(shout=True)
    found = stored(row)
    assert (found.note, found.balance, found.fence, row.fence) == ("HUSH", 5, NOW, NOW)
    found.pk = None
    fenced(found, NEW).save()
    assert Account.objects.using(using).count() == 2


def test_a_delete_needs_the_newest_token(using):
    row = account(using, fence=NOW)
    with pytest.raises(StaleLock):
        fenced(row, OLD).delete()
    assert stored(row).fence == NOW
    for deleted in ((1, {"fencing.Account": 1}), (0, {})):
        pk = row.pk
        assert fenced(row, NEW).delete() == deleted
        row.pk = pk
    with pytest.raises(ValueError, match="can't be deleted"):
        fenced(Account(), NOW).delete(using=using)
