"""A lock object that is garbage-collected while it holds a lock gives a warning."""

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager

import pytest
import redis.exceptions
from django.db import transaction

from django_redislock import LockLost, locks
from django_redislock.primitives import Place
from tests.lock_tools import free
from tests.tools import ROOT, Child


@contextmanager
def no_warning():
    """Fail if the block, or the garbage that it leaves, warns about a lock object."""
    gc.collect()  # garbage of other tests
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    messages = [str(each.message) for each in caught]
    assert not [message for message in messages if "lock object" in message]


def test_dropping_a_lock_object_that_holds_the_lock_warns(manager):
    with pytest.warns(ResourceWarning) as caught:
        manager.lock("a", timeout=1.5).acquire()
    assert [str(each.message) for each in caught] == [
        "Lock 'a' was not released before its lock object was garbage-collected. Keep a reference "
        "to the lock object and release it."
    ]
    assert caught[0].filename == __file__
    assert manager.get("a") is not None
    free(manager, "a")


def test_dropping_a_lock_object_that_an_asyncio_task_acquired_warns(manager):
    async def acquire():
        await manager.lock("a", timeout=1.5).aacquire()

    with pytest.warns(ResourceWarning, match="'a' was not released") as caught:
        asyncio.run(acquire())
    assert caught[0].filename == __file__
    assert manager.get("a") is not None
    free(manager, "a")


def test_dropping_a_lock_object_of_several_names_warns_once():
    with pytest.warns(ResourceWarning, match="'a', 'b' was not released") as caught:
        locks.lock_many(["b", "a"]).acquire()
    assert len(caught) == 1
    assert locks.force_release("a") == locks.force_release("b") == 1


def test_a_lock_that_was_entered_again_and_not_released_often_enough_warns_once():
    lock = locks.lock("a", reentrant=True)
    for _ in range(3):
        lock.acquire()
    lock.release()
    with pytest.warns(ResourceWarning, match="'a'") as caught:
        del lock
    assert len(caught) == 1
    assert locks.force_release("a") == 1


def test_a_lock_that_another_object_of_its_holder_keeps_does_not_warn():
    lock = locks.lock("a", reentrant=True)
    lock.acquire()
    with no_warning():
        locks.lock("a", reentrant=True).acquire()
    lock.release()
    assert locks.get("a") is None


def test_a_released_lock_does_not_warn(manager):
    async def use():
        lock = manager.lock("a")
        await lock.aacquire()
        await lock.arelease()
        async with manager.lock("a"):
            pass

    with no_warning():
        lock = manager.lock("a")
        lock.acquire()
        lock.release()
        del lock
        with manager.lock("a"):
            pass
        asyncio.run(use())


def test_a_lost_lock_does_not_warn(manager):
    with no_warning():
        lock = manager.lock("a")
        lock.acquire()
        manager.force_release("a")
        with pytest.raises(LockLost):
            lock.reacquire()
        del lock


def test_an_expired_lock_does_not_warn(manager):
    with no_warning():
        lock = manager.lock("a", timeout=0.1, auto_renewal=False)
        lock.acquire()
        free(manager, "a")
        assert lock.lost
        del lock


@pytest.mark.django_db(transaction=True)
def test_a_release_that_is_deferred_to_the_commit_does_not_warn():
    with no_warning(), transaction.atomic():
        lock = locks.lock("a", release_on_commit=True)
        lock.acquire()
        lock.release()
        del lock
        gc.collect()
        assert locks.get("a") is not None
    assert locks.get("a") is None


def test_a_lock_that_could_not_be_released_does_not_warn(own_locks, own_server):
    with no_warning():
        lock = own_locks.lock("a")
        lock.acquire()
        own_server.stop()
        with pytest.raises(redis.exceptions.ConnectionError):
            lock.release()
        del lock


def test_a_lock_that_became_a_queue_lock_does_not_warn():
    with no_warning():
        lock = locks.lock("a")
        lock.acquire()
        place = Place(lock, "queued", (None, "an-id"))
        place.inherit(60)
        assert place.leave()
        del lock, place


FORKED = """
import gc, os, warnings
from django_redislock import locks

warnings.simplefilter("always", ResourceWarning)
lock = locks.lock("a")
lock.acquire()
pid = os.fork()
del lock
gc.collect()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
say("done")
"""


def test_the_copy_of_a_forked_child_does_not_warn(capfd):
    with Child(FORKED) as child:
        child.expect("done")
    assert capfd.readouterr().err.count("'a' was not released") == 1  # its parent's
    assert locks.force_release("a") == 1


# A file without functions: else its module is a reference cycle, whose locks never warn.
AT_EXIT = """
import django
django.setup()
from django_redislock import locks
lock = locks.lock("a")
lock.acquire()
"""


def test_the_end_of_the_process_does_not_warn(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", script],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "lock object" not in done.stderr
    assert locks.force_release("a") == 1
