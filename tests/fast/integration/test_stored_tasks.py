"""Messages of tasks that wait in the queue of a lock without a process."""

import uuid

import pytest
from redis.exceptions import TimeoutError

from django_redislock import LockLost, LockNotOwnedError, locks
from django_redislock.lock_types import QueueLock
from django_redislock.lock_types.stored_task import Outbox, store
from tests.lock_tools import free, hanging, renewed, start, waiting
from tests.tools import wait_until

claims: dict[str, str] = {}
"""The claims of granted and taken messages, by their tokens."""


@pytest.fixture
def outbox():
    return Outbox(locks.alias)


@pytest.fixture
def name(outbox):
    name = f"stored-{uuid.uuid4().hex}"
    yield name
    for waiter in locks.queue(name, 1000):
        locks.force_release(name, waiter.stored_token)
    locks.force_release(name)
    while claims:
        outbox.confirm(*claims.popitem())


def token_of(name, task_id):
    return f"queued-{name}-{task_id}"


def queue_lock_of(name, task_id, lock=None):
    return QueueLock(lock or locks.lock(name), token_of(name, task_id), ("shop.task", task_id))


def put(name, task_id, lock=None, **options):
    defaults = {"lease": 60, "starts_in": 0, "expires_in": 0, "most": 0, "arrival": 0}
    message = f"message {task_id}"
    stored = store(queue_lock_of(name, task_id, lock), message, **{**defaults, **options})
    if stored.claim:
        claims[token_of(name, task_id)] = stored.claim
    return stored


def finish(name, task_id):
    assert queue_lock_of(name, task_id).release()


def queued(name):
    return [each.holder.task_id for each in locks.queue(name)]


def taken_messages(outbox, name):
    messages = [each for each in outbox.take() if name in each.token]
    claims.update({each.token: each.claim for each in messages})
    return messages


def taken(outbox, name):
    """Take the messages that are due, and return the texts of those of this lock."""
    return [each.message for each in taken_messages(outbox, name)]


def confirm(outbox, name, *task_ids):
    for task_id in task_ids:
        token = token_of(name, task_id)
        assert outbox.confirm(token, claims[token])


def test_a_late_confirmation_does_not_lose_a_message_that_was_granted_again(name, outbox):
    """A worker gets the message before its sender confirms it, and returns it to the queue."""
    arrival = int(put(name, "1").detail)
    late = claims[token_of(name, "1")]
    finish(name, "1")
    with locks.lock(name):
        assert put(name, "1", arrival=arrival).outcome == "queued"
        assert not outbox.confirm(token_of(name, "1"), late)
        assert taken(outbox, name) == []
    assert not outbox.confirm(token_of(name, "1"), late)
    assert taken(outbox, name) == ["message 1"]


def test_messages_are_granted_one_after_the_other(name, outbox):
    assert put(name, "1").outcome == "granted"
    assert [put(name, each).outcome for each in "23"] == ["queued"] * 2
    confirm(outbox, name, "1")
    assert taken(outbox, name) == []
    finish(name, "1")
    assert locks.get(name).holder.task_id == "2"
    assert taken(outbox, name) == ["message 2"]
    assert taken(outbox, name) == []
    confirm(outbox, name, "2")
    finish(name, "2")
    assert taken(outbox, name) == ["message 3"]
    confirm(outbox, name, "3")
    finish(name, "3")
    assert locks.get(name) is None


def test_a_message_that_nobody_confirms_is_taken_again(name, outbox):
    put(name, "1")
    for is_again in (False, True):  # its sender died before it sent it, and then its worker
        [message] = wait_until(lambda: taken_messages(outbox, name), timeout=10, interval=0.2)
        assert message.is_again is is_again


def test_messages_and_processes_wait_in_one_queue(name, outbox):
    with locks.lock(name):
        put(name, "1")
        assert not locks.lock(name).acquire(blocking_timeout=0.1)
        queue = locks._server().keys.of(name).queue
        assert locks._server().client.ttl(queue) == -1, "a message needs no heartbeats"
        waiter = start(locks.lock(name).acquire)
        waiting(locks, name, 2)
        put(name, "2")
        put(name, "3")
        *others, last = locks.queue(name)
        assert [each.is_stored for each in others] == [True, False, True]
        assert locks.force_release(name, last.stored_token)
        assert queued(name)[-1] == "2"
    assert taken(outbox, name) == ["message 1"]
    finish(name, "1")
    assert waiter.result(60)
    assert taken(outbox, name) == []
    locks.force_release(name)
    assert taken(outbox, name) == ["message 2"]


def test_a_limit_is_the_number_of_granted_messages_and_the_latest_counts(name, outbox):
    lock = locks.semaphore(name, 2)
    assert [put(name, each, lock).outcome for each in "1234"] == ["granted"] * 2 + ["queued"] * 2
    for each in "12":
        finish(name, each)
    assert taken(outbox, name) == ["message 3", "message 4"]
    assert put(name, "5", lock).outcome == "queued"
    assert put(name, "6", locks.semaphore(name, 4)).outcome == "granted"
    assert taken(outbox, name) == ["message 5"]


def test_too_many_messages_are_refused(name, outbox):
    outcomes = [put(name, each, most=2).outcome for each in "1234"]
    assert outcomes == ["granted", "queued", "queued", "full"]
    assert put(name, "3", most=2).outcome == "queued"  # a repeated request
    other_type = locks.semaphore(name, 2)
    assert put(name, "5", other_type)[:2] == ("kind", "mutex")


def test_a_message_returns_to_its_place(name, outbox):
    with locks.lock(name):
        arrival = int(put(name, "1").detail)
        put(name, "2")
        assert outbox.cancel(token_of(name, "1"))
        assert not outbox.cancel(token_of(name, "1"))
        put(name, "1", arrival=arrival)
        assert queued(name) == ["1", "2"]
    assert taken(outbox, name) == ["message 1"]
    assert not outbox.cancel(token_of(name, "1")), "it has its lock"


def test_a_message_is_sent_without_the_lock(name, outbox):
    with locks.lock(name):
        put(name, "1")
        put(name, "2")
        outbox.send_without_lock(token_of(name, "1"))
        assert queued(name) == ["2"]
        assert taken(outbox, name) == ["message 1"]
        assert queued(name) == ["2"]
    assert taken(outbox, name) == ["message 2"]
    outbox.send_without_lock(token_of(name, "2"))
    assert taken(outbox, name) == []


def test_a_message_whose_sender_passes_its_lock_on_to_it_is_sent(name, outbox):
    """A retry can begin, and return to the queue, before the execution that sent it has ended."""
    sender = locks.lock(name, auto_renewal=False)
    assert sender.acquire()
    put(name, "1")
    assert queue_lock_of(name, "1").take_over(sender.token, 60)
    assert queued(name) == []
    assert taken(outbox, name) == ["message 1"]
    assert locks.get(name).holder.task_id == "1"
    with pytest.raises(LockNotOwnedError):
        sender.release()


def test_the_lock_of_a_dead_holder_is_granted_when_its_lease_expires(name, outbox):
    lock = locks.lock(name, timeout=0.5, auto_renewal=False)
    assert lock.acquire()
    put(name, "1")
    wait_until(lambda: taken(outbox, name) == ["message 1"], timeout=10, interval=0.1)


def test_the_lease_follows_start_and_expiry(name, outbox):
    put(name, "1", starts_in=100)
    assert 155 < locks.get(name).ttl <= 160
    put(name, "2", starts_in=100, expires_in=20)
    put(name, "3", expires_in=0.01)
    finish(name, "1")
    assert 15 < locks.get(name).ttl <= 20
    assert len(taken(outbox, name)) == 1
    finish(name, "2")
    assert 0.5 < locks.get(name).ttl <= 1
    assert len(taken(outbox, name)) == 1


def test_a_message_that_returns_while_it_has_the_lock_is_sent_again(name, outbox):
    arrival = int(put(name, "1").detail)
    confirm(outbox, name, "1")
    assert put(name, "1", arrival=arrival)[:2] == ("granted", str(arrival))
    assert [each.holder.task_id for each in locks.get(name).holders] == ["1"]


def test_the_queue_of_dead_processes_expires_after_the_last_message(name, outbox):
    put(name, "1")
    put(name, "2")
    confirm(outbox, name, "1")
    server = locks._server()
    key, redis_client = server.keys.of(name).queue, server.client
    assert redis_client.ttl(key) == -1
    redis_client.zadd(key, {"a waiter that has died": 9e15})
    finish(name, "1")
    assert 0 < redis_client.pttl(key) <= 2000
    assert taken(outbox, name) == ["message 2"]
    confirm(outbox, name, "2")
    finish(name, "2")


def test_a_message_whose_lock_was_released_is_still_sent(name, outbox):
    put(name, "1")
    put(name, "2")
    finish(name, "1")
    assert locks.force_release(name)
    assert taken(outbox, name) == ["message 2"]


def test_an_expired_permit_goes_to_the_next_message_while_others_are_held(name, outbox):
    lock = locks.semaphore(name, 2)
    dying = locks.semaphore(name, 2, timeout=0.5, auto_renewal=False)
    with lock:
        assert dying.acquire()
        for each in "12":
            assert put(name, each, lock).outcome == "queued"
        wait_until(lambda: taken(outbox, name) == ["message 1"], timeout=10, interval=0.1)
        assert queued(name) == ["2"]
    confirm(outbox, name, "1")
    assert taken(outbox, name) == ["message 2"]


def test_a_due_message_that_cannot_be_read_is_removed(name, outbox):
    server = locks._server()
    due = f"{server.keys.of(name).inboxes}outbox:due"
    server.client.zadd(due, {f"queued-{name}-1": 0})
    assert taken(outbox, name) == []
    assert server.client.zscore(due, f"queued-{name}-1") is None


def test_the_task_of_a_message_takes_its_lock_over_and_hands_it_on(name, outbox):
    put(name, "1")
    put(name, "2")
    confirm(outbox, name, "1")
    lock = locks.lock(name)
    lock.predecessor = token_of(name, "1")
    with lock:
        assert taken(outbox, name) == []
    assert taken(outbox, name) == ["message 2"]
    confirm(outbox, name, "2")
    lock.predecessor = token_of(name, "2")
    with lock:
        assert not queued(name)
    assert locks.get(name) is None


# Queue locks: holds that no process renews, and that another process takes over or releases


NAME = "tests:queue-lock"
TASK = ("shop.sync", "an-id")


@pytest.fixture
def queue_lock():
    queue_lock = QueueLock(locks.lock(NAME), "a-token", TASK)
    yield queue_lock
    queue_lock.release()


def test_a_queue_lock_is_not_renewed_and_its_expiry_not_logged(queue_lock, caplog):
    assert queue_lock.acquire(0.1)
    wait_until(lambda: locks.get(NAME) is None)
    assert NAME not in caplog.text


def test_only_a_hold_of_the_same_type_is_taken_over(queue_lock):
    assert not queue_lock.take_over("gone", 30)
    assert locks.get(NAME) is None
    with locks.semaphore(NAME, 2):
        assert not queue_lock.acquire(60)
        assert not queue_lock.take_over("gone", 60)


def test_a_lock_takes_over_a_queue_lock(queue_lock):
    assert queue_lock.acquire(60)
    assert queue_lock.set_lease(5)
    assert locks.get(NAME).ttl <= 5
    fence = locks.get(NAME).fence_token
    lock = locks.lock(NAME, blocking=False)
    assert not lock.acquire()
    lock.predecessor = queue_lock.token
    with lock:
        assert lock.fence_token > fence
        assert not queue_lock.release()
        assert locks.get(NAME).token == lock.token
    assert locks.get(NAME) is None


def test_a_queue_lock_inherits_a_lock_whose_waiters_stay(queue_lock):
    lock = queue_lock.lock
    assert lock.acquire()
    fence, waits = lock.fence_token, start(lambda: lock.acquire(blocking_timeout=5))
    wait_until(lambda: locks.get(NAME).waiters)
    queue_lock.inherit(60)
    assert lock.token is None
    info = locks.get(NAME)
    assert (info.token, info.waiters) == (queue_lock.token, 1)
    assert info.fence_token > fence
    assert info.holder.task_id == "an-id"
    queue_lock.release()
    waits.result(60)
    locks.force_release(NAME)


def test_a_lock_that_is_not_held_is_not_inherited(queue_lock):
    with pytest.raises(LockNotOwnedError):
        queue_lock.inherit(60)
    assert queue_lock.lock.acquire()
    locks.force_release(NAME)
    with locks.lock(NAME, blocking=False):
        with pytest.raises(LockLost, match="transfer"):
            queue_lock.inherit(60)
        assert queue_lock.lock.token is None


@pytest.fixture
def hasty(alias_on, own_server):
    own = alias_on(own_server.url, socket_timeout=0.2)
    return own, QueueLock(own.lock(NAME), "a-token", TASK)


def test_what_times_out_is_released_when_redis_responds(own_server, hasty):
    own, queue_lock = hasty
    assert queue_lock.acquire(60)
    with hanging(own_server), pytest.raises(TimeoutError):
        queue_lock.release()
    free(own, NAME)
    with hanging(own_server):
        with pytest.raises(TimeoutError):
            queue_lock.acquire(60)
        queue_lock.release_later()
    free(own, NAME)


def test_a_queue_lock_that_is_acquired_again_is_not_released_later(own_server, hasty):
    own, queue_lock = hasty
    with hanging(own_server):
        queue_lock.release_later()
    assert queue_lock.acquire(60)
    with own.lock("another", timeout=1.5):
        renewed(own, "another", times=2)
    assert own.get(NAME).token == queue_lock.token
