"""Instances: save() and delete()."""

import pickle

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F
from django.db.models.signals import post_save, pre_save
from django.db.transaction import TransactionManagementError

from django_redislock import StaleLock
from django_redislock.fencing import fenced
from tests.fencing.models import Account, Ledger, Parcel, Place, Restaurant, Savings, School
from tests.fencing.tools import NEW, NOW, OLD, account, stored


def test_a_stale_save_changes_neither_row_nor_instance(using):
    row = account(using, balance=1, fence=OLD)
    Account.objects.using(using).filter(pk=row.pk).update(fence=NEW, balance=2)

    row.balance, row.fence = 5, 0  # the fence of the instance does not count
    with pytest.raises(StaleLock) as caught:
        fenced(row, NOW).save()

    assert (caught.value.pk, caught.value.token, caught.value.found) == (row.pk, NOW, NEW)
    assert row.fence == 0
    assert (stored(row).balance, stored(row).fence) == (2, NEW)


@pytest.mark.parametrize("model", [Account, Parcel, Savings, Restaurant, School])
def test_a_new_row_is_inserted(using, model):
    row = model()
    fenced(row, NOW).save(using=using)
    assert row.fence == NOW
    assert stored(row).fence == NOW
    fenced(row, NEW).save()
    assert stored(row).fence == NEW


def test_an_instance_with_a_key_of_its_own_meets_the_row_that_is_there(using):
    row = account(using, balance=1, fence=NEW)
    with pytest.raises(StaleLock):
        fenced(Account(pk=row.pk, balance=5), NOW).save(using=using)
    fenced(Account(pk=row.pk, balance=6), NEW).save(using=using)
    assert stored(row).balance == 6


def test_an_insert_that_is_forced_meets_the_row_that_is_there(using):
    row = account(using, balance=1)
    late = Account(pk=row.pk, balance=5)
    with pytest.raises(IntegrityError):
        fenced(late, NOW).save(force_insert=True, using=using)
    assert late.fence == 0
    assert (stored(row).balance, stored(row).fence) == (1, 0)


@pytest.mark.parametrize("options", [{}, {"update_fields": ["balance"]}, {"force_update": True}])
def test_a_deleted_row_is_not_inserted_again(using, options):
    row = account(using, fence=OLD)
    Account.objects.using(using).all().delete()
    with pytest.raises(DatabaseError, match=f"fencing.Account {row.pk} does not exist"):
        fenced(row, NOW).save(**options)
    assert row.fence == OLD
    assert not Account.objects.using(using).exists()


def test_update_fields_are_written_and_the_fence(using):
    row = account(using, balance=1, note="old")
    row.balance, row.note = 5, "new"
    fenced(row, NOW).save(update_fields=["balance"])
    found = stored(row)
    assert (found.balance, found.note, found.fence, row.fence) == (5, "old", NOW, NOW)


def test_no_update_fields_are_no_write(using):
    row = account(using, fence=OLD)
    fenced(row, NOW).save(update_fields=[])
    assert (row.fence, stored(row).fence) == (OLD, OLD)


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
    assert row.fence == NOW
    found = stored(row)
    assert (found.note, found.balance, found.fence) == ("HUSH", 5, NOW)
    found.pk = None
    fenced(found, NEW).save()
    assert Account.objects.using(using).count() == 2


def test_the_signals_of_save_are_sent(using):
    heard = []

    def hear(sender, instance, **about):
        about["signal"] = "pre" if about["signal"] is pre_save else "post"
        heard.append((about, pickle.loads(pickle.dumps(instance)).pk))  # noqa: S301  our own

    row = account(using)
    pre_save.connect(hear, sender=Account)
    post_save.connect(hear, sender=Account)
    try:
        fenced(row, NOW).save(update_fields=["balance"])
    finally:
        pre_save.disconnect(hear, sender=Account)
        post_save.disconnect(hear, sender=Account)

    about = {"raw": False, "using": using, "update_fields": frozenset({"balance"})}
    assert heard == [
        (about | {"signal": "pre"}, row.pk),
        (about | {"signal": "post", "created": False}, row.pk),
    ]


def test_a_save_that_fails_leaves_the_fence(using):
    row = account(using, fence=OLD)
    row.balance = None
    with pytest.raises(IntegrityError):
        fenced(row, NOW).save()
    assert row.fence == OLD
    assert stored(row).fence == OLD


def test_the_block_around_a_stale_save_is_rolled_back(using):
    row, other = account(using, fence=NEW), account(using)
    with transaction.atomic(using=using):
        fenced(other, NOW).save()
        with pytest.raises(StaleLock):
            fenced(row, NOW).save()
        with pytest.raises(TransactionManagementError):
            fenced(other, NEW).save()
    assert stored(other).fence == 0


@pytest.mark.parametrize("model", [Restaurant, School])
def test_a_stale_save_writes_none_of_several_tables(using, model):
    row = model.objects.using(using).create(name="old", fence=NEW)
    row.name = "new"
    with pytest.raises(StaleLock):
        fenced(row, NOW).save()
    assert stored(row).name == "old"
    fenced(row, NEW).save()
    assert stored(row).name == "new"


@pytest.mark.parametrize("act", ["save", "delete"])
def test_a_stale_holder_does_not_write_a_linked_parent(using, act):
    place = Place.objects.using(using).create(name="old", fence=NEW)
    child = Restaurant(place_ptr_id=place.pk, name="new")

    with pytest.raises(StaleLock):
        getattr(fenced(child, NOW), act)(using=using)
    assert (stored(place).name, stored(place).fence) == ("old", NEW)

    fenced(child, NEW + 1).save(using=using)
    assert (stored(place).name, stored(place).fence) == ("new", NEW + 1)


def test_of_two_fences_one_is_named(using):
    row = Ledger.objects.using(using).create(debit_fence=OLD, credit_fence=NEW)
    row.debit = 5
    fenced(row, NOW, field="debit_fence").save(update_fields=["debit"])
    with pytest.raises(StaleLock):
        fenced(row, NOW, field="credit_fence").save()
    found = stored(row)
    assert (found.debit, found.debit_fence, found.credit_fence) == (5, NOW, NEW)


def test_a_delete_needs_the_newest_token(using):
    row = account(using, fence=NOW)
    with pytest.raises(StaleLock):
        fenced(row, OLD).delete()
    assert stored(row).fence == NOW
    assert fenced(row, NEW).delete() == (1, {"fencing.Account": 1})
    assert not Account.objects.using(using).exists()


def test_a_row_that_is_not_there_is_not_deleted(using):
    row = account(using)
    Account.objects.using(using).all().delete()
    assert fenced(row, NOW).delete() == (0, {})
    with pytest.raises(ValueError, match="can't be deleted"):
        fenced(Account(), NOW).delete(using=using)


def test_async_saves_and_deletes(using):
    row = account(using)

    async def work():
        await fenced(row, NOW).asave()
        assert (await Account.objects.using(using).aget()).fence == NOW
        with pytest.raises(StaleLock):
            await fenced(row, OLD).asave()
        with pytest.raises(StaleLock):
            await fenced(row, OLD).adelete()
        assert await fenced(row, NOW).adelete() == (1, {"fencing.Account": 1})

    async_to_sync(work)()
