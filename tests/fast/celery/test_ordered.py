"""Tasks with `on_conflict="queue"`, sent by this process. `tests/full/workers` uses workers."""

from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial

import pytest
from celery.exceptions import Ignore, Retry
from kombu import Queue
from kombu.exceptions import OperationalError

from django_redislock import AlreadyRunning, locks
from django_redislock.celery import ordered
from django_redislock.celery.message import AGAIN, ARRIVAL, QUEUE_LOCK
from django_redislock.celery.ordered import send_due
from django_redislock.lock_types.stored_task import Outbox
from django_redislock.tasks.single import queue_lock_token
from tests.tools import wait_until

from .tools import held_by, make_task, run_message

ORDERED = {"mode": "until_executed", "on_conflict": "queue"}


@pytest.fixture(autouse=True)
def nothing_is_left(app, name):
    """Remove what other tests left with the broker in memory, and at the end what is stored."""
    delivered(app)
    yield
    for waiter in locks.queue(name, 1000):
        locks.force_release(name, waiter.stored_token)


def delivered(app):
    """Return the messages that the broker has, and remove them."""
    with app.connection_for_read() as connection:
        queue = Queue("celery")(connection.default_channel)
        queue.declare()
        return [*iter(partial(queue.get, no_ack=True), None)]


def ids_of(messages):
    return [message.headers["id"] for message in messages]


def end(app, task, message):
    """Run a message that was delivered, and return its result."""
    ours = {key: value for key, value in message.headers.items() if key.startswith("redislock")}
    return run_message(app, task, headers=ours, task_id=message.headers["id"])


def test_one_message_is_with_the_broker_and_the_next_follows(app, name):
    ran = []
    task = make_task(app, name, body=lambda: ran.append(1), **ORDERED)
    results = [task.delay() for _ in range(3)]
    for result in results:
        [message] = delivered(app)
        assert message.headers["id"] == result.id
        assert message.headers[QUEUE_LOCK] == name
        assert message.headers[ARRIVAL] > 0
        assert AGAIN not in message.headers
        end(app, task, message)
    end(app, task, message)  # a second copy
    assert ran == [1, 1, 1]
    assert delivered(app) == []
    assert held_by(name) == {}


def test_a_message_keeps_all_that_celery_puts_into_it(app, name):
    task = make_task(app, name, **ORDERED)
    task.delay()
    options = {"headers": {"tenant": "blue"}, "priority": 7, "serializer": "pickle"}
    options |= {"link": task.si(), "shadow": "shown", "countdown": 100}
    called = datetime.now(UTC)
    task.apply_async((1, {2, 3}), {"four": 5}, **options)
    [first] = delivered(app)
    end(app, task, first)
    [message] = delivered(app)
    eta = datetime.fromisoformat(message.headers["eta"])
    assert 100 <= (eta - called).total_seconds() < 160  # it counts from the call
    assert b"four" in bytes(message.body)
    assert message.content_type == "application/x-python-serialize"
    assert message.headers["tenant"] == "blue"
    assert message.headers["shadow"] == "shown"
    assert message.properties["priority"] == 7


def test_max_queued_refuses_one_more(app, name):
    task = make_task(app, name, max_queued=1, **ORDERED)
    first = task.delay()
    task.delay()
    with pytest.raises(AlreadyRunning) as caught:
        task.delay()
    assert caught.value.task_id == first.id
    assert ids_of(delivered(app)) == [first.id]
    for outcome in locks.history(name):
        assert outcome.outcome == "refused"


def test_a_limit_is_the_number_of_messages_with_the_broker(app, name):
    task = make_task(app, name, limit=2, **ORDERED)
    ids = [task.delay().id for _ in range(4)]
    first, second = delivered(app)
    assert ids_of([first, second]) == ids[:2]
    end(app, task, second)
    [third] = delivered(app)
    assert third.headers["id"] == ids[2]
    for message in (first, third):
        end(app, task, message)
    [last] = delivered(app)
    end(app, task, last)
    assert held_by(name) == {}


def test_a_task_can_send_its_own_next_run(app, name):
    task = make_task(app, name, body=lambda: task.delay().id, **ORDERED)
    first = task.delay()
    [message] = delivered(app)
    assert message.headers["id"] == first.id
    following = end(app, task, message)
    assert ids_of(delivered(app)) == [following]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_task_that_has_ended_keeps_no_other_waiting(app, name, is_full):
    task = make_task(app, name, max_queued=1, **ORDERED)
    results = [task.delay() for _ in range(2 if is_full else 1)]
    delivered(app)
    app.backend.store_result(results[0].id, None, "FAILURE")
    with pytest.raises(AlreadyRunning) if is_full else nullcontext():
        results.append(task.delay())
    [message] = delivered(app)
    assert message.headers["id"] == results[1].id
    assert held_by(name) == {name: results[1].id}
    assert end(app, task, message) == "ran"


def test_the_same_id_is_not_sent_twice(app, name):
    task = make_task(app, name, **ORDERED)
    for _ in range(2):
        assert task.apply_async(task_id="own").id == "own"
        assert task.apply_async(task_id="other").id == "other"
    assert ids_of(delivered(app)) == ["own"]
    assert [each.holder.task_id for each in locks.queue(name)] == ["other"]


def test_a_message_that_cannot_be_sent_leaves_nothing(app, name, monkeypatch):
    def publish(self, *args, **options):
        raise OperationalError("no broker")

    task = make_task(app, name, **ORDERED)
    monkeypatch.setattr("kombu.Producer.publish", publish)
    with pytest.raises(OperationalError):
        task.delay()
    assert held_by(name) == {}
    monkeypatch.undo()
    result = task.delay()
    assert ids_of(delivered(app)) == [result.id]


def test_where_there_is_no_broker_a_conflict_raises(eager, name):
    task = make_task(eager, name, **ORDERED)
    with locks.lock(name), pytest.raises(AlreadyRunning):
        task.delay()
    assert held_by(name) == {}
    assert task() == "ran"


def test_a_message_without_a_queue_lock_joins_the_queue(app, name):
    """`send_task()` knows only the name of the task."""
    task = make_task(app, name, **ORDERED)
    with locks.lock(name):
        assert run_message(app, task).type is Retry
        assert [each.holder.task_id for each in locks.queue(name)] == ["own"]
    send_due(app, locks)
    assert ids_of(delivered(app)) == ["own"]


def test_a_second_copy_that_meets_the_lock_of_the_next_message_is_ignored_later(app, name):
    ran = []
    task = make_task(app, name, body=lambda: ran.append(1), **ORDERED)
    first, _ = task.delay(), task.delay()
    [message] = delivered(app)
    end(app, task, message)
    [following] = delivered(app)
    assert end(app, task, message).type is Retry
    end(app, task, following)
    [copy] = delivered(app)
    assert copy.headers["id"] == first.id
    assert end(app, task, copy).type is Ignore
    assert len(ran) == 2


def test_a_message_that_returns_to_a_full_queue_is_not_refused(app, name):
    task = make_task(app, name, max_queued=1, task={"acks_late": True}, **ORDERED)
    first, _ = task.delay(), task.delay()
    [message] = delivered(app)
    locks.force_release(name)
    send_due(app, locks)
    last = task.delay()
    ours = {key: value for key, value in message.headers.items() if key.startswith("redislock")}
    returned = run_message(app, task, headers=ours, task_id=first.id, redelivered=True)
    assert returned.type is Retry
    assert [each.holder.task_id for each in locks.queue(name)] == [first.id, last.id]


def test_a_message_that_was_sent_without_its_lock_returns_to_its_place(app, name):
    task = make_task(app, name, **ORDERED)
    ids = [task.delay().id for _ in range(3)][1:]
    delivered(app)
    Outbox(locks.alias).send_without_lock(queue_lock_token(ids[0]))
    send_due(app, locks)
    [message] = delivered(app)
    assert message.headers["id"] == ids[0]
    assert end(app, task, message).type is Retry
    assert [each.holder.task_id for each in locks.queue(name)] == ids


def test_a_forged_message_is_not_sent(app, name, redis_server, caplog):
    task = make_task(app, name, **ORDERED)
    first, second = task.delay(), task.delay()
    [key] = redis_server.scan_iter("*:inbox:outbox:messages")
    token = queue_lock_token(second.id)
    record = redis_server.hget(key, token)
    forged = record.replace('"task": "tests.', '"task": "other.')
    assert forged != record
    redis_server.hset(key, token, forged)
    [message] = delivered(app)
    assert message.headers["id"] == first.id
    end(app, task, message)
    assert delivered(app) == []
    assert "Stored message dropped, no valid signature" in caplog.text


def test_a_message_that_the_broker_refuses_does_not_stop_others(app, name, monkeypatch, caplog):
    tasks = [make_task(app, f"{name}:{number}", **ORDERED) for number in range(2)]
    ids = [[task.delay().id for _ in range(2)] for task in tasks]
    publish, refused = ordered.publish, ids[0][1]

    def publish_others(app, message):
        if message.token == queue_lock_token(refused):
            raise OperationalError("refused")
        publish(app, message)

    monkeypatch.setattr(ordered, "publish", publish_others)
    for task, message in zip(tasks, delivered(app), strict=True):
        end(app, task, message)
    assert ids_of(delivered(app)) == [ids[1][1]]
    assert "Stored message not sent, will retry" in caplog.text
    outbox = Outbox(locks.alias)
    [message] = wait_until(outbox.take, timeout=10)
    assert outbox.confirm(queue_lock_token(refused), message.claim)
