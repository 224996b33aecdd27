"""Locks behave the same on each topology."""

import asyncio
import os
import signal
from contextlib import ExitStack

import pytest

from django_redislock import LockLost, locks
from django_redislock.engine.stored import StoreOutcome
from django_redislock.health import CHECKS
from django_redislock.lock_types import QueueLock
from django_redislock.lock_types.stored_task import Outbox, store
from tests.lock_tools import arenewed, awaiting, renewed, start, waiting
from tests.tools import STOPPED, Child, wait_until

from .conftest import START_SECONDS

pytestmark = [pytest.mark.usefixtures("topology"), pytest.mark.timeout(300)]

LEASE = 3.0
"""In seconds. Long enough for a renewal on a busy machine."""

MANY = [f"name-{number}" for number in range(64)]


def enters(lock):
    if lock.acquire():
        lock.release()
        return True
    return False


def test_a_lock_is_held_in_its_block_and_can_be_extended():
    with locks.lock("a", timeout=10, auto_renewal=False) as lock:
        assert lock.owned()
        assert lock.locked()
        assert not lock.lost
        assert locks.get("a").token == lock.token
        lock.extend(100)
        assert 100 < locks.get("a").ttl <= 110
        lock.reacquire()
        assert 0 < locks.get("a").ttl <= 10
    assert not lock.locked()
    assert locks.get("a") is None


def test_a_lock_is_refused_and_handed_over_between_processes(other):
    with locks.lock("a") as lock:
        ours = lock.fence_token
        assert not other.acquire("a", blocking=False)
        other.start_acquire("a", blocking_timeout=20)
        waiting(locks, "a", 1)
    assert other.acquired("a") > ours
    assert not locks.lock("a", blocking=False).acquire()
    turn = start(enters, locks.lock("a", blocking_timeout=20))
    waiting(locks, "a", 1)
    other.release("a")
    assert turn.result(60)


def test_renewal_keeps_a_lock_beyond_its_lease():
    with locks.lock("a", timeout=LEASE) as lock:
        renewed(locks, "a", times=2)
        lock.assert_held()


def test_the_lock_of_a_killed_holder_expires_with_its_lease(topology):
    with Child(STOPPED, "a", str(LEASE), "{}", **topology.environment) as holder:
        holder.expect("held", timeout=START_SECONDS)
        assert not locks.lock("a", blocking=False).acquire()
        os.kill(holder.pid, signal.SIGKILL)
        with locks.lock("a", blocking_timeout=LEASE + 3):
            pass


def test_a_force_released_lock_is_lost_for_its_holder():
    reported = []
    lock = locks.lock("a", timeout=LEASE, on_lost=reported.append)
    assert lock.acquire()
    assert locks.force_release("a", token="nobody's") == 0
    assert locks.force_release("a", lock.token) == 1
    assert not lock.owned()
    wait_until(lambda: lock.lost and reported == [lock])
    with pytest.raises(LockLost):
        lock.release()


def test_semaphores_and_read_locks_have_several_holders():
    with locks.semaphore("a", 2), locks.semaphore("a", 2):
        assert not start(enters, locks.semaphore("a", 2, blocking=False)).result(60)
        assert (locks.get("a").capacity, len(locks.get("a").holders)) == (2, 2)
    with locks.read_lock("b"):
        assert start(enters, locks.read_lock("b", blocking=False)).result(60)
        assert not start(enters, locks.write_lock("b", blocking=False)).result(60)
    with locks.write_lock("b"):
        assert not start(enters, locks.read_lock("b", blocking=False)).result(60)


def test_many_locks_are_held_together(other):
    with locks.lock_many(MANY, timeout=2 * LEASE) as many:
        assert set(many.fence_tokens) == set(MANY)
        assert locks.count() == len(MANY)
        assert {info.name for info in locks.active()} == set(MANY)
        assert set(locks.get_many(MANY)) == set(MANY)
        before = {name: info.expires_at for name, info in locks.get_many(MANY).items()}
        wait_until(lambda: all(each.expires_at > before[each.name] for each in locks.active()))
        assert many.owned()
        assert not other.acquire(MANY[-1], blocking=False)
    assert locks.count() == 0


def test_stored_messages_get_the_lock_one_after_the_other():
    outbox = Outbox(locks.alias)
    queue_locks = [
        QueueLock(locks.lock("a"), f"queued-{number}", ("shop.task", str(number)))
        for number in range(4)
    ]
    terms = {"lease": 60, "starts_in": 0, "expires_in": 0, "most": 3, "arrival": 0}
    first, *others = [store(each, each.token, **terms) for each in queue_locks]
    assert first.outcome is StoreOutcome.GRANTED
    assert {each.outcome for each in others} == {StoreOutcome.QUEUED}
    assert outbox.confirm("queued-0", first.claim)
    assert outbox.take() == []
    outbox.send_without_lock("queued-1")
    [revoked] = outbox.take()
    assert revoked.message == "queued-1"
    assert outbox.confirm("queued-1", revoked.claim)
    assert not outbox.cancel("queued-1")
    assert locks.force_release("a", "queued-2") == 1
    assert [each.holder.task_id for each in locks.queue("a")] == ["3"]
    assert queue_locks[0].release()
    [message] = outbox.take()
    assert (message.token, message.message) == ("queued-3", "queued-3")
    assert outbox.confirm("queued-3", message.claim)
    assert queue_locks[3].release()
    assert locks.get("a") is None


def test_locks_are_listed_by_the_end_of_their_leases():
    with ExitStack() as stack:
        for number, name in enumerate(MANY):
            stack.enter_context(locks.lock(name, timeout=100 + number, auto_renewal=False))
        page = locks.page("name-*", start=10, stop=20)
        assert [info.name for info in page.infos] == MANY[10:20]
        assert page.total == len(MANY)
        assert {info.name for info in locks.active("name-6?")} == set(MANY[60:])


def test_the_history_has_each_event(other):
    with locks.lock("a", metadata={"why": "because"}):
        other.acquire("a", blocking=False)
    assert {event.outcome for event in locks.history("a")} == {"released", "refused"}
    [released] = [event for event in locks.history() if event.outcome == "released"]
    assert released.metadata == {"why": "because"}
    assert sum(locks.rates().counts["refused"][-2:]) == 1


def test_the_health_check_reports_no_failure():
    found = locks.health()
    statuses = {each.id: each.status for each in found.findings}
    assert [*statuses] == [*CHECKS]
    assert statuses["locking"] == statuses["scripts"] == statuses["connection"] == "ok", found
    assert not {"unknown", "failed"} & {*statuses.values()}, found


async def test_an_asyncio_task_waits_for_another_process(other):
    other.acquire("a")
    waiter = asyncio.ensure_future(locks.lock("a", blocking_timeout=20).aacquire())
    await awaiting(locks, "a", 1)
    assert other.release("a")
    assert await waiter
    assert await locks.aforce_release("a") == 1


async def test_the_async_versions_work():
    lock = locks.lock("a", timeout=LEASE)
    assert await lock.aacquire()
    await arenewed(locks, "a")
    await lock.aextend(10)
    assert not await asyncio.create_task(locks.lock("a", blocking=False).aacquire())
    await lock.arelease()
    async with locks.lock_many(MANY):
        assert await locks.acount() == len(MANY)
        assert {info.name async for info in locks.aactive()} == set(MANY)
        assert (await locks.apage(stop=10)).total == len(MANY)
    assert (await locks.ahistory("a"))[0].outcome
    assert (await locks.ahealth()).get("locking").status == "ok"
