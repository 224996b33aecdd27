"""A bank whose rows are fenced, and models of other shapes."""
# ruff: noqa: DJ008  the default text is enough

import uuid

from django.db import models

from django_redislock.fencing import FenceField


class Owner(models.Model):
    name = models.TextField()


class Account(models.Model):
    owner = models.ForeignKey(Owner, models.CASCADE, null=True, related_name="accounts")
    balance = models.IntegerField(default=0)
    note = models.TextField(default="")
    fence = FenceField()

    def save(self, *args, shout=False, **options):
        if shout:
            self.note = self.note.upper()
        super().save(*args, **options)


class Savings(Account):
    class Meta:
        proxy = True


class Parcel(models.Model):
    """Its key is known before it is saved."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    weight = models.IntegerField(default=0)
    fence = FenceField("written under")


class Ledger(models.Model):
    """Two fences, one for each of two locks."""

    debit = models.IntegerField(default=0)
    debit_fence = FenceField()
    credit = models.IntegerField(default=0)
    credit_fence = FenceField(db_column="credited_under")


class Place(models.Model):
    name = models.TextField(default="")
    fence = FenceField()


class Restaurant(Place):
    """Two tables."""

    seats = models.IntegerField(default=0)


class Bistro(Restaurant):
    class Meta:
        proxy = True
