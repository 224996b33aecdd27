"""The field in migrations, and the effect of ordinary writes on it."""

import pytest
from django.db import connections
from django.db.migrations.writer import MigrationWriter

from django_redislock.fencing import FenceField
from tests.fencing.models import Account, Parcel
from tests.fencing.tools import NEW, NOW, OLD, account, stored


def test_a_migration_can_recreate_the_field():
    for options in ({}, {"db_column": "f", "help_text": "?"}):
        field = FenceField(**options)
        path, args, found = field.deconstruct()[1:]
        assert (path, args, found) == ("django_redislock.fencing.FenceField", [], options)
        assert MigrationWriter.serialize(field)[1] == {"import django_redislock.fencing"}


@pytest.mark.parametrize("name", ["default", "null", "editable", "primary_key", "unique"])
def test_incompatible_options_are_refused(name):
    with pytest.raises(TypeError, match=f"does not accept {name}=1"):
        FenceField(**{name: 1})


def test_a_plain_save_leaves_the_fence_as_it_is(using):
    row = account(using, fence=OLD)
    other = stored(row)
    Account.objects.using(using).update(fence=NEW)

    row.balance = 5
    row.save()
    other.save(update_fields=["balance", "fence"])
    Account.objects.using(using).defer("fence").get(pk=row.pk).save()

    assert (stored(row).balance, stored(row).fence) == (0, NEW)


def test_a_plain_insert_uses_0_or_the_given_fence(using):
    rows = [Parcel(fence=NOW), Parcel()]
    Parcel.objects.using(using).bulk_create(rows)
    rows += [account(using, fence=NOW), Account.objects.using(using).create()]
    assert [stored(row).fence for row in rows] == [NOW, 0, NOW, 0]


def test_existing_rows_start_at_0(using):
    row = Parcel.objects.using(using).create(weight=3, fence=NOW)
    fence = Parcel._meta.get_field("fence")

    with connections[using].schema_editor() as editor:
        editor.remove_field(Parcel, fence)
    with connections[using].schema_editor() as editor:
        editor.add_field(Parcel, fence)

    assert (stored(row).weight, stored(row).fence) == (3, 0)
