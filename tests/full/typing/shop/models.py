"""A model whose rows are fenced."""

from typing import assert_type

from django.db import models

from django_redislock import StaleLock, locks
from django_redislock.fencing import FencedInstance, FencedRows, FenceField, fenced


class Account(models.Model):
    balance: "models.IntegerField[int, int]" = models.IntegerField(default=0)
    fence = FenceField()

    def __str__(self) -> str:
        return f"{self.balance} {self.fence}"


def withdraw(account: Account) -> int:
    assert_type(account.fence, int)
    with locks.lock(f"account:{account.pk}") as lock:
        rows = fenced(Account.objects.filter(pk=account.pk), lock)
        assert_type(rows, FencedRows[Account])
        assert_type(rows.get(balance__gt=0), Account)
        try:
            assert_type(fenced(account, lock), FencedInstance[Account])
            fenced(account, lock.fence_token or 0, field="fence").save(update_fields=["balance"])
        except StaleLock as error:
            assert_type(error.found, int | None)
        return rows.update(balance=models.F("balance") - 10)


async def withdraw_async(account: Account, token: int) -> int:
    assert_type(await fenced(account, token).adelete(), tuple[int, dict[str, int]])
    return await fenced(Account.objects, token).aupdate(balance=0)
