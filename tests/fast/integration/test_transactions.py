"""Locks and database transactions."""

import contextlib
import logging
from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_redislock import LockLost, locks
from django_redislock.lock_types import transactions
from django_redislock.signals import lock_released
from tests.lock_tools import free, listening, start
from tests.tools import Child, wait_until

real = pytest.mark.django_db(transaction=True)


def is_held(name="a"):
    return locks.get(name) is not None


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr(transactions, "_warned", False)
    caplog.set_level(logging.WARNING, "django_redislock")
    return lambda: [each.getMessage() for each in caplog.records if "open transac" in each.msg]


@real
def test_a_lock_is_kept_until_the_commit(warnings):
    with transaction.atomic():
        with locks.lock("a", release_on_commit=True) as lock:
            pass
        assert is_held()
        assert lock.token is None
        with transaction.atomic(), lock:
            pass
        assert is_held()
        assert not start(locks.lock("a", blocking=False).acquire).result(60)
        assert lock.acquire()
    assert lock.owned(), "it was acquired again"
    lock.release()
    assert not is_held()
    assert warnings() == []
    with transaction.atomic():
        lock = locks.lock("a", timeout=0.1, auto_renewal=False, release_on_commit=True)
        assert lock.acquire()
        wait_until(lambda: lock.lost)
        with pytest.raises(LockLost):
            lock.release()


@real
@pytest.mark.parametrize("outer", [transaction.atomic, contextlib.nullcontext])
def test_a_lock_is_released_with_the_transaction_or_savepoint_that_is_rolled_back(outer):
    def fail():
        with locks.lock("a", release_on_commit=True):
            pass
        assert is_held()
        raise ZeroDivisionError

    with outer():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            fail()
        assert not is_held()


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_does_not_count(warnings):
    for options in ({"release_on_commit": True}, {}):
        with locks.lock("a", **options):
            pass
        assert not is_held()
    assert warnings() == []


@real
def test_release_on_commit_needs_autocommit():
    transaction.set_autocommit(False)
    with (
        pytest.raises(transaction.TransactionManagementError, match="off for database"),
        locks.lock("a", release_on_commit=True),
    ):
        Group.objects.create(name="g")
    transaction.rollback()
    transaction.set_autocommit(True)
    wait_until(lambda: not is_held())


@real
def test_a_release_inside_a_transaction_warns_once(warnings):
    with locks.lock("a", reentrant=True) as lock:
        with transaction.atomic(), lock:
            pass
        assert warnings() == [], "it is still held"
    with transaction.atomic():
        for _ in range(2):
            with locks.lock("a"):
                pass
    [message] = warnings()
    assert "'a'" in message
    assert "release_on_commit" in message


@real
def test_a_failed_release_after_the_commit_does_not_affect_the_transaction(caplog):
    with transaction.atomic():
        with locks.lock("a", release_on_commit=True):
            Group.objects.create(name="g")
        assert locks.force_release("a") == 1
    assert Group.objects.count() == 1
    assert "Lock not released after transaction: name='a'" in caplog.text


@real
def test_an_interrupt_of_the_release_after_the_commit_is_raised_and_the_lock_released():
    def interrupt(**about):
        raise Stop

    lock = locks.lock("a", timeout=600, release_on_commit=True)
    with listening(lock_released, interrupt), pytest.raises(Stop), transaction.atomic(), lock:
        pass
    free(locks, "a")


class Stop(BaseException):
    """An exception that `send_robust()` does not catch."""


@real
def test_a_failing_callback_does_not_keep_the_lock():
    def fail():
        raise ZeroDivisionError

    with suppress(ZeroDivisionError), locks.atomic("a"):
        transaction.on_commit(fail)
    assert not is_held()


FORKED = """
import os
from django.db import transaction
from django_redislock import LockNotOwnedError, locks

class Response:
    pass

with locks.lock("b", timeout=30) as lock, transaction.atomic():
    with locks.lock("a", release_on_commit=True):
        pass
    response = Response()
    lock.release_when_dropped(response)
    pid = os.fork()
    if pid == 0:
        for _, run, _ in transaction.get_connection().run_on_commit:
            run()
        del response
        try:
            lock.release()
        except LockNotOwnedError:
            os._exit(locks.lock("b", reentrant=True).acquire(blocking=False))
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    say(f"child {status} {locks.count()}")
say(f"held {locks.count()}")
"""


def test_a_forked_child_does_not_release_the_locks_of_its_parent():
    with Child(FORKED, PYTHONWARNINGS="ignore") as parent:
        assert parent.expect("child") == "0 2"
        assert parent.expect("held") == "0"


@real
def test_atomic_holds_the_lock_until_the_outermost_transaction_ends(warnings):
    seen = []
    with locks.atomic("a", timeout=5) as lock:
        lock.assert_held()
        assert transaction.get_connection().in_atomic_block
        transaction.on_commit(lambda: seen.append(is_held()))
    assert seen == [True]
    assert not is_held()
    assert warnings() == []
    with transaction.atomic():
        with locks.atomic("a"):
            pass
        assert is_held()
    assert not is_held()
