"""What fenced() takes and what it refuses; the error that it raises."""

import pickle

import pytest
from asgiref.sync import async_to_sync

from django_redislock import LockError, LockLost, LockNotOwnedError, StaleLock, locks
from django_redislock.fencing import fenced
from tests.fencing.models import Account, Ledger, Owner

from .tools import NOW, account, stored


def test_a_lock_that_is_held_gives_its_token(using):
    row = account(using)
    with locks.lock("account") as lock:
        fenced(Account.objects.using(using), lock).update(balance=5)
        assert stored(row).fence == lock.fence_token
        fenced(row, lock).save()
        assert row.fence == lock.fence_token


def test_each_holder_writes_over_the_one_before(using):
    row = account(using)
    for balance in (1, 2, 3):
        with locks.lock("account") as lock:
            fenced(Account.objects.using(using), lock).update(balance=balance)
    assert stored(row).balance == 3


def test_a_stale_write_names_the_lock(using):
    account(using, fence=2**62)
    with (
        locks.lock("account") as lock,
        pytest.raises(StaleLock, match="of lock 'account' is older than 4611") as caught,
    ):
        fenced(Account.objects.using(using), lock).update(balance=5)
    assert caught.value.lock_name == "account"


def test_a_lock_that_is_not_held_is_refused_before_the_database_is_asked():
    lock = locks.lock("account")
    for write in (fenced(Account.objects, lock).update, fenced(Account(), lock).save):
        with pytest.raises(LockNotOwnedError):
            write()


def test_a_lock_that_was_lost_is_refused_before_the_database_is_asked():
    lock = locks.lock("account")
    assert lock.acquire()
    locks.force_release("account")
    with pytest.raises(LockLost):
        lock.extend(1)
    with pytest.raises(LockLost):
        fenced(Account.objects, lock).get()
    with pytest.raises(LockLost):
        lock.release()


def test_a_task_of_asyncio_writes_under_its_own_lock(using):
    row = account(using)

    async def work():
        async with locks.lock("account") as lock:
            await fenced(Account.objects.using(using), lock).aupdate(balance=5)
            await fenced(row, lock).asave(update_fields=["note"])
            return lock.fence_token

    token = async_to_sync(work)()
    assert (stored(row).balance, stored(row).fence) == (5, token)


@pytest.mark.parametrize("lock", [None, "20", 2.0, True])
def test_what_is_no_lock_is_refused(lock):
    with pytest.raises(TypeError, match=f"lock must be .*, got {lock!r}"):
        fenced(Account.objects, lock).update()


@pytest.mark.parametrize("token", [0, -1, 2**63])
def test_what_is_no_token_is_refused(token):
    with pytest.raises(ValueError, match=f"lock must be from 1 to .*, got {token}"):
        fenced(Account.objects, token).update()


class Several:
    """A lock over several servers, which has no one token."""

    fence_token = (1, 2)

    def assert_held(self):
        pass


def test_a_lock_without_a_token_is_refused():
    with pytest.raises(TypeError, match=r"lock\.fence_token must be an int, got \(1, 2\)"):
        fenced(Account.objects, Several()).update()


@pytest.mark.parametrize("target", [None, Account, "fencing.Account", [1]])
def test_what_has_no_rows_is_refused(target):
    with pytest.raises(TypeError, match="target must be a queryset"):
        fenced(target, NOW)


@pytest.mark.parametrize("target", [Owner.objects, Owner.objects.all(), Owner()])
def test_a_model_without_a_fence_is_refused(target):
    with pytest.raises(TypeError, match=r"fencing\.Owner has no FenceField"):
        fenced(target, NOW)


def test_of_several_fences_one_must_be_named():
    with pytest.raises(ValueError, match=r"fencing\.Ledger has several FenceFields"):
        fenced(Ledger(), NOW)


@pytest.mark.parametrize("name", ["debit", "nothing", ""])
def test_a_name_that_is_no_fence_is_refused(name):
    with pytest.raises(ValueError, match=rf"field must be .* fencing\.Ledger, got '{name}'"):
        fenced(Ledger(), NOW, field=name)


@pytest.mark.parametrize("name", ["account:1", None])
def test_the_error_survives_a_pickle(name):
    error = StaleLock("bank.Account", 7, 20, 30, name)
    found = pickle.loads(pickle.dumps(error))  # noqa: S301  our own

    assert isinstance(found, LockError)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert (found.model, found.pk, found.token, found.found) == ("bank.Account", 7, 20, 30)
    assert found.lock_name == name


def test_the_errors_text_can_not_forge_a_line():
    text = str(StaleLock("bank.Account", "x\nroot: paid", 20, None, "y\n"))
    assert "\n" not in text
    assert "older than the one found" in text


def test_a_lock_of_several_names_says_that_each_has_its_token(using):
    row = account(using)
    with locks.lock_many(["account", "ledger"]) as lock:
        with pytest.raises(TypeError, match=r"several fencing tokens.*lock\.fence_tokens\[name\]"):
            fenced(Account.objects.using(using), lock).update(balance=5)
        fenced(row, lock.fence_tokens["account"]).save()
    assert stored(row).fence == row.fence > 0
