"""The arguments of fenced(), its error, and the field in migrations and ordinary writes."""

import pytest
from asgiref.sync import async_to_sync

from django_redislock import LockLost, LockNotOwnedError, StaleLock, locks
from django_redislock.fencing import fenced
from tests.fencing.models import Account, Bistro, Owner, Restaurant
from tests.fencing.tools import NEW, NOW, OLD, account, stored


def test_a_held_lock_provides_the_token_and_a_lock_of_several_names_one_for_each(using):
    row = account(using)
    with locks.lock("account") as lock:
        fenced(Account.objects.using(using), lock).update(balance=5)
        assert stored(row).fence == lock.fence_token
        fenced(row, lock).save()
        assert row.fence == lock.fence_token
    with locks.lock_many(["account", "ledger"]) as several:
        with pytest.raises(TypeError, match=r"several fencing tokens.*lock\.fence_tokens\[name\]"):
            fenced(Account.objects.using(using), several).update(balance=5)
        fenced(row, several.fence_tokens["account"]).save()
    with locks.lock("account") as lock:
        fenced(row, 2**62).save()
        with pytest.raises(StaleLock, match="of lock 'account' is older than 4611") as caught:
            fenced(Account.objects.using(using), lock).update(balance=6)
    assert caught.value.lock_name == "account"


def test_a_lock_that_is_not_held_is_refused_without_a_query():
    lock = locks.lock("account")
    for write in (fenced(Account.objects, lock).update, fenced(Account(), lock).save):
        with pytest.raises(LockNotOwnedError):
            write()
    assert lock.acquire()
    locks.force_release("account")
    with pytest.raises(LockLost):
        lock.extend(1)
    with pytest.raises(LockLost):
        fenced(Account.objects, lock).get()
    with pytest.raises(LockLost):
        lock.release()


def test_an_async_task_writes_and_deletes_under_its_own_lock(using):
    row = account(using)

    async def work():
        async with locks.lock("account") as lock:
            await fenced(Account.objects.using(using), lock).aupdate(balance=5)
            await fenced(row, lock).asave(update_fields=["note"])
            found = await Account.objects.using(using).aget()
            assert (found.balance, found.fence) == (5, lock.fence_token)
            with pytest.raises(StaleLock):
                await fenced(row, lock.fence_token - 1).adelete()
            assert await fenced(row, lock).adelete() == (1, {"fencing.Account": 1})

    async_to_sync(work)()


@pytest.mark.parametrize("lock", [None, "20", True, 0, 2**63])
def test_a_lock_without_a_valid_token_is_refused(lock):
    with pytest.raises((TypeError, ValueError), match=f"lock must be .*, got {lock!r}"):
        fenced(Account.objects, lock).update()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Account, "target must be a queryset"),
        ("fencing.Account", "target must be a queryset"),
        (Owner.objects, r"fencing\.Owner has no FenceField"),
        (Owner(), r"fencing\.Owner has no FenceField"),
        (Restaurant(), "several tables"),
        (Bistro.objects, "several tables"),
    ],
)
def test_a_target_that_cannot_be_fenced_is_refused(target, message):
    with pytest.raises(TypeError, match=message):
        fenced(target, NOW)


def test_a_plain_save_leaves_the_fence_as_it_is(using):
    row = account(using, fence=OLD)
    other = stored(row)
    Account.objects.using(using).update(fence=NEW)

    row.balance = 5
    row.save()
    other.save(update_fields=["balance", "fence"])
    Account.objects.using(using).defer("fence").get(pk=row.pk).save()

    assert (stored(row).balance, stored(row).fence) == (0, NEW)
