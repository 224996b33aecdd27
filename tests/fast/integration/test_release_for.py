"""A lock that one process acquires and another one releases."""

import asyncio

import pytest

from django_redislock import LockLost, locks
from django_redislock.signals import lock_force_released
from tests.lock_tools import listening, start, waiting
from tests.tools import Child, wait_until

ACQUIRE = """
from django_redislock import locks

def acquire():
    lock = locks.lock("import", timeout=60, auto_renewal=False)
    assert lock.acquire()
    return lock.token

say(acquire())
hear()
"""


@pytest.mark.parametrize(
    "release_for", [locks.release_for, lambda *args: asyncio.run(locks.arelease_for(*args))]
)
def test_a_process_releases_the_lock_of_another_one(release_for):
    forced = []
    with Child(ACQUIRE) as child, listening(lock_force_released, lambda **_: forced.append(1)):
        token = child.expect("")
        waiter = start(locks.lock("import").acquire)
        waiting(locks, "import", 1)
        assert release_for("import", token) is True
        assert waiter.result(60)
        assert release_for("import", token) is False
        child.tell()
        assert child.wait() == 0
    ended = [each.outcome for each in locks.history("import") if each.holder.pid == child.pid]
    assert ended == ["released"]
    assert not forced
    locks.force_release("import")


def test_a_chosen_token_releases_its_lock():
    lock = locks.lock("import", auto_renewal=False)
    assert lock.acquire(token="import-42")
    assert lock.token == "import-42"
    assert locks.release_for("import", "import") is False
    assert locks.release_for("import", lock.token, at_least_for=60) is True
    assert locks.get("import").state == "cooldown"
    locks.force_release("import")


def test_a_holder_that_still_uses_the_lock_finds_the_loss():
    lock = locks.lock("import", timeout=1.5)
    assert lock.acquire()
    assert locks.release_for("import", lock.token)
    wait_until(lambda: lock.lost)  # by its renewal
    with pytest.raises(LockLost):
        lock.assert_held()
