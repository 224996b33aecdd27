"""Locks behave the same on each topology."""

import asyncio
from contextlib import ExitStack

import pytest
from redis.crc import key_slot

from django_redislock import LockLost, locks
from django_redislock.conf import conf
from django_redislock.engine.stored import StoreOutcome
from django_redislock.health import CHECKS
from django_redislock.keys import Keys
from django_redislock.lock_types import QueueLock
from django_redislock.lock_types.stored_task import Outbox, store
from tests.lock_tools import arenewed, awaiting, renewed, start, waiting
from tests.tools import wait_until

pytestmark = [pytest.mark.usefixtures("topology"), pytest.mark.timeout(300)]

LEASE = 3.0
"""In seconds. Long enough for a renewal on a busy machine."""

MANY = [f"name-{number}" for number in range(64)]


def enters(lock):
    if lock.acquire():
        lock.release()
        return True
    return False


def test_a_lock_is_held_renewed_extended_and_handed_over(topology):
    with locks.lock("a", timeout=LEASE, metadata={"why": "because"}) as lock:
        renewed(locks, "a")
        lock.extend(100)
        assert 100 < locks.get("a").ttl <= 100 + LEASE
        lock.reacquire()
        assert not enters(locks.lock("a", blocking=False))
        turn = start(enters, locks.lock("a", blocking_timeout=20))
        waiting(locks, "a", 1)
        if topology.cluster:  # meanwhile its slot moves
            slot = key_slot(Keys(conf.prefix).index.encode())
            owner = topology.cluster.owner(slot)
            other = next(node for node in topology.cluster.owners() if node is not owner)
            topology.cluster.move_slot(slot, other)
            renewed(locks, "a")
        assert lock.owned()
    assert turn.result(60)
    assert locks.get("a") is None
    assert {event.outcome for event in locks.history("a")} == {"released", "refused"}
    assert {"why": "because"} in [event.metadata for event in locks.history("a")]
    assert sum(locks.rates().counts["refused"][-2:]) == 1


def test_a_force_released_lock_is_lost_for_its_holder_and_an_expired_one_is_free():
    reported = []
    lock = locks.lock("a", timeout=LEASE, on_lost=reported.append)
    assert lock.acquire()
    assert locks.force_release("a", token="nobody's") == 0
    assert locks.force_release("a", lock.token) == 1
    wait_until(lambda: lock.lost and reported == [lock])
    with pytest.raises(LockLost):
        lock.release()
    assert locks.lock("a", timeout=0.5, auto_renewal=False).acquire()
    assert enters(locks.lock("a", blocking_timeout=20))


def test_semaphores_and_read_locks_have_several_holders():
    with locks.semaphore("a", 2), locks.semaphore("a", 2):
        assert not enters(locks.semaphore("a", 2, blocking=False))
        assert (locks.get("a").capacity, len(locks.get("a").holders)) == (2, 2)
    with locks.read_lock("b"):
        assert enters(locks.read_lock("b", blocking=False))
        assert not enters(locks.write_lock("b", blocking=False))


def test_many_locks_are_held_together_and_listed_by_the_end_of_their_leases():
    with locks.lock_many(MANY, timeout=2 * LEASE) as many:
        assert {info.name for info in locks.active()} == set(MANY)
        before = {name: info.expires_at for name, info in locks.get_many(MANY).items()}
        wait_until(lambda: all(each.expires_at > before[each.name] for each in locks.active()))
        assert many.owned()
        assert not enters(locks.lock(MANY[-1], blocking=False))
    assert locks.count() == 0
    with ExitStack() as stack:
        for number, name in enumerate(MANY):
            stack.enter_context(locks.lock(name, timeout=100 + number, auto_renewal=False))
        page = locks.page("name-*", start=10, stop=20)
        assert [info.name for info in page.infos] == MANY[10:20]
        assert page.total == len(MANY)


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


def test_the_health_check_reports_no_failure():
    found = locks.health()
    statuses = {each.id: each.status for each in found.findings}
    assert [*statuses] == [*CHECKS]
    assert statuses["locking"] == statuses["scripts"] == statuses["connection"] == "ok", found
    assert not {"unknown", "failed"} & {*statuses.values()}, found


async def test_the_async_versions_work():
    lock = locks.lock("a", timeout=LEASE)
    assert await lock.aacquire()
    await arenewed(locks, "a")
    await lock.aextend(10)
    waiter = asyncio.create_task(locks.lock("a", blocking_timeout=20).aacquire())
    await awaiting(locks, "a", 1)
    await lock.arelease()
    assert await waiter
    assert await locks.aforce_release("a") == 1
    async with locks.lock_many(MANY):
        assert {info.name async for info in locks.aactive()} == set(MANY)
        assert (await locks.apage(stop=10)).total == len(MANY)
    assert (await locks.ahistory("a"))[0].outcome
    assert (await locks.ahealth()).get("locking").status == "ok"
