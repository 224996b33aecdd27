"""Querysets: update() and get(). Instances: save() and delete()."""

import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, IntegrityError, NotSupportedError, transaction
from django.db.models import Count, Exists, F, OuterRef
from django.db.transaction import TransactionManagementError

from django_redislock import StaleLock
from django_redislock.fencing import fenced
from tests.fencing.models import Account, Ledger, Owner, Parcel, Savings
from tests.fencing.tools import NEW, NOW, OLD, account, stored


@pytest.fixture
def rows(using):
    return Account.objects.using(using)


def test_an_update_writes_all_rows_or_none_and_names_the_newest_token(using, rows):
    found = [account(using, balance=1, fence=fence) for fence in (0, OLD, NEW, NEW + 1)]

    with pytest.raises(StaleLock) as caught:
        fenced(rows.filter(balance=1), NOW).update(balance=5)
    error = caught.value
    assert (error.model, error.pk) == ("fencing.Account", found[-1].pk)
    assert (error.token, error.found, error.lock_name) == (NOW, NEW + 1, None)
    assert [stored(row).balance for row in found] == [1, 1, 1, 1]
    for none in (rows.filter(pk=0), rows.none()):  # no row is not stale
        assert fenced(none, NOW).update(balance=5) == 0

    assert fenced(rows, NEW + 1).update(balance=F("balance") + 4) == 4
    assert {(stored(row).balance, stored(row).fence) for row in found} == {(5, NEW + 1)}


@pytest.mark.parametrize("act", ["update", "save"])
def test_the_block_around_a_stale_write_is_rolled_back(using, rows, act):
    row, other = account(using, fence=NEW), account(using)
    target = row if act == "save" else rows.filter(pk=row.pk)
    with transaction.atomic(using=using):
        fenced(other, NOW).save()
        with pytest.raises(StaleLock):
            getattr(fenced(target, NOW), act)()
        with pytest.raises(TransactionManagementError):
            rows.count()
    assert stored(other).fence == 0


OPEN_HERE = Account.objects.filter(owner=OuterRef("owner"), note="open")


@pytest.mark.parametrize(
    "chosen",
    [
        lambda rows: rows.filter(owner__name="Ada"),
        lambda rows: rows.annotate(n=Count("owner")).filter(n=1),
        lambda rows: rows.filter(Exists(OPEN_HERE)),
        lambda rows: rows.filter(owner__in=rows.filter(note="open").values("owner")),
    ],
    ids=["relation", "aggregate", "exists", "among"],
)
def test_an_update_whose_conditions_read_other_rows_is_refused(using, rows, chosen):
    row = account(using, owner=Owner.objects.using(using).create(name="Ada"), note="open")
    with pytest.raises(TypeError, match=r"fencing\.Account.* other tables or subqueries"):
        fenced(chosen(rows), NOW).update(balance=5)
    assert stored(row).fence == 0


def test_one_of_two_fences_must_be_named(using):
    rows = Ledger.objects.using(using)
    row = rows.create(debit_fence=NEW)

    assert fenced(rows, NOW, field="credit_fence").update(credit=5) == 1
    with pytest.raises(StaleLock):
        fenced(rows, NOW, field="debit_fence").update(debit=5)

    assert (stored(row).credit, stored(row).credit_fence) == (5, NOW)
    assert (stored(row).debit, stored(row).debit_fence) == (0, NEW)
    with pytest.raises(ValueError, match=r"fencing\.Ledger has several FenceFields"):
        fenced(Ledger(), NOW)
    for name in ("debit", "nothing", ""):
        refused = rf"field must be .* fencing\.Ledger, got '{name}'"
        with pytest.raises(ValueError, match=refused):
            fenced(Ledger(), NOW, field=name)


def test_an_update_that_is_not_possible_is_refused(using, rows):
    with pytest.raises(ValueError, match=r"cannot set .*\.fence"):
        fenced(rows, NOW).update(fence=1)
    with pytest.raises(TypeError, match="slice"):
        fenced(rows.all()[:1], NOW).update(balance=5)
    with pytest.raises(NotSupportedError, match="union"):
        fenced(rows.union(rows.all()), NOW).update(balance=5)


def test_get_returns_the_row_unless_its_token_is_newer(using, rows):
    row = account(using, fence=NOW)
    with transaction.atomic(using=using):
        assert fenced(rows, NOW).get(pk=row.pk) == row
        with pytest.raises(ObjectDoesNotExist):
            fenced(rows, NOW).get(pk=0)
        with pytest.raises(StaleLock) as caught:
            fenced(rows.only("balance"), OLD).get(pk=row.pk)
    assert (caught.value.pk, caught.value.token, caught.value.found) == (row.pk, OLD, NOW)


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


def test_the_save_method_of_the_model_is_called(using):
    row = account(using, note="hush", balance=1, fence=OLD)
    row.balance = F("balance") + 4
    fenced(row, NOW).save(shout=True)
    found = stored(row)
    assert (found.note, found.balance, found.fence, row.fence) == ("HUSH", 5, NOW, NOW)


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
