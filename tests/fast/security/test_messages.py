"""The sender of a task chooses its id, its arguments and its headers. They cannot make two tasks
run at once, and cannot break the inspection of locks."""

import contextlib
import json
import logging
import math
import threading

import kombu
import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Retry
from celery.worker import state
from celery.worker.request import Request
from hypothesis import example, given
from hypothesis import strategies as st

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import worker
from django_redislock.celery.message import AGAIN, CONFLICTS, DUPLICATE, OURS, QUEUE_LOCK
from tests.lock_tools import start

from .forging import fuzzed, json_values, texts

NAME = "messages:kept"

app = Celery("messages", broker="memory://", set_as_current=False)
app.conf.task_ignore_result = True

ran = []


def body(argument=None):
    ran.append(argument)


def failing_body(argument=None):
    ran.append(argument)
    raise LookupError(argument)


def task_below(name, body=body, autoretry_for=(), **options):
    """A task whose lock is taken when it is executed."""
    decorated = single_instance(key=NAME, **options)(body)
    return app.task(name=f"messages.{name}", autoretry_for=autoretry_for)(decorated)


def task_above(mode, **options):
    """A task whose lock is taken when it is sent."""
    task = app.task(name=f"messages.{mode}.{options.get('on_conflict')}")(body)
    single_instance(mode=mode, key=NAME, **options)(task)
    return app.tasks[task.name]


def execute(task, task_id, delivery=None, **attributes):
    """Execute a message like a worker, and return the error with which it ends, if any. Its
    headers set the attributes of the request."""
    request = {"id": task_id, "is_eager": False, "delivery_info": delivery, **attributes}
    trace = build_tracer(task.name, task, app=app, eager=True, propagate=False)
    ended = trace(request["id"], (), {}, request)
    return ended.info.retval if ended.info else None


TASKS = [
    task_below("skip"),
    task_below("raise", on_conflict="raise"),
    task_below("retry", on_conflict="retry", max_retries=3),
    task_below("wait", on_conflict="wait", blocking_timeout=0.01),
    task_above("until_executed", on_conflict="skip"),
    task_above("until_executed", on_conflict="replace"),
]

headers = st.dictionaries(st.sampled_from(OURS) | texts, json_values, max_size=4)
deliveries = st.none() | st.dictionaries(st.just("redelivered"), json_values)


@fuzzed(20)
@given(st.sampled_from(TASKS), texts.filter(bool), st.none() | headers, deliveries)
@example(TASKS[2], "id", {CONFLICTS: -(10**400)}, None)
@example(TASKS[2], "id", {CONFLICTS: 10**400}, None)
@example(TASKS[2], "id", {CONFLICTS: True, AGAIN: "x"}, {})
@example(TASKS[0], "id", {DUPLICATE: {"a": [1]}}, {"redelivered": "no"})
@example(TASKS[1], "id", {DUPLICATE: "\x1b[31m"}, None)
@example(TASKS[4], "id", {QUEUE_LOCK: "another"}, None)
@example(TASKS[4], "id", {QUEUE_LOCK: NAME, CONFLICTS: [1]}, None)
@example(TASKS[5], "id", {QUEUE_LOCK: {"a": 1}}, None)
@example(TASKS[0], "\ud800\x1b[31m\u202e\n", {QUEUE_LOCK: 1}, None)
def test_headers_cannot_make_two_tasks_run_at_once(caplog, task, task_id, headers, delivery):
    caplog.clear()
    caplog.set_level(logging.DEBUG, "django_redislock")
    ran.clear()
    with locks.lock(NAME, timeout=30):
        error = execute(task, task_id, delivery, headers=headers)
    assert ran == []
    assert error is None or isinstance(error, AlreadyRunning | Retry), repr(error)
    for record in caplog.records:
        if record.name == "django_redislock":
            assert record.getMessage().isprintable()


# A sender can forge everything that is read from the request.

FORGED = sorted(
    {*OURS, "id", "args", "kwargs", "headers", "retries", "is_eager", "called_directly", "chord"}
    | {"group", "chain", "callbacks", "errbacks", "children", "delivery_info", "_children"}
    # Celery passes these on to the next execution, which django_redislock sends.
    | {"expires", "eta", "timelimit", "reply_to", "hostname", "ignore_result", "stamps"}
)

QUEUED_TASKS = [
    task_above("until_executing"),
    task_above("until_executed"),
    task_above("until_and_while_executing"),
]
KEPT_TASKS = [task_below("kept", hold_on_retry=True), *QUEUED_TASKS]
RETRIED = task_below("retried", failing_body, (LookupError,), hold_on_retry=True)

LONGEST_KEPT = 3600 + 600
"""Defaults of queue_timeout and retry_backoff_max, in seconds."""

extreme = st.sampled_from([math.inf, -math.inf, math.nan, 1e18, 3e8, 10**18, "x" * 100_000])
extreme |= st.sampled_from([json.loads("[" * 900 + "]" * 900), {str(n): [n] for n in range(9000)}])
forged = st.dictionaries(st.sampled_from(FORGED), extreme | json_values, max_size=5)


def execute_forged(task, attributes):
    # The worker itself makes the mapping.
    delivery = {"redelivered": attributes.get("delivery_info")}
    with contextlib.suppress(Exception):  # Celery itself may fail on forged data
        execute(task, "forged", **attributes | {"delivery_info": delivery})


def is_later_run(task, task_id="later", **attributes):
    ran.clear()
    error = execute(task, task_id, **attributes)
    return ran == [None] and (error is None or isinstance(error, LookupError | Retry))


def held():
    return [(info.name, info.token) for info in locks.active(f"{NAME}*")]


@fuzzed(90)
@given(st.sampled_from(KEPT_TASKS), forged, st.booleans())
@example(KEPT_TASKS[2], {AGAIN: 3e8}, False)
@example(KEPT_TASKS[0], {DUPLICATE: {"a": 1}}, False)
@example(QUEUED_TASKS[1], {DUPLICATE: "first", "children": 5}, False)
@example(QUEUED_TASKS[0], {QUEUE_LOCK: NAME, "id": None}, True)
@example(QUEUED_TASKS[1], {QUEUE_LOCK: NAME, AGAIN: True, DUPLICATE: "queued"}, True)
@example(QUEUED_TASKS[2], {QUEUE_LOCK: f"{NAME}:queued", "retries": 1}, True)
def test_a_forged_message_leaves_locks_as_they_were(task, attributes, is_queued):
    later = {}
    if is_queued and task in QUEUED_TASKS:
        task.apply_async(task_id="queued")
        later = {"task_id": "queued", "headers": {QUEUE_LOCK: held()[0][0]}}
    before = held()
    execute_forged(task, attributes)
    assert held() == before
    assert is_later_run(task, **later)
    assert held() == []


def is_bounded(attributes):
    """Celery computes 2 ** retries before it looks at max_retries."""
    retries = attributes.get("retries")
    return not isinstance(retries, int) or retries < 1000


@fuzzed(20)
@given(forged.filter(is_bounded))
@example({"retries": "3"})
@example({"retries": -1e18})
@example({"retries": [1]})
def test_a_retried_forged_message_does_not_keep_its_lock_longer(attributes):
    execute_forged(RETRIED, attributes)
    kept = locks.get(NAME)
    assert kept is None or kept.ttl <= LONGEST_KEPT
    locks.force_release(NAME)
    assert is_later_run(RETRIED)
    locks.force_release(NAME)


# A worker looks for revoked requests. A sender can forge their stamps.


def received(task, task_id, **headers):
    """Return the request that a worker makes of a message."""
    headers = {"id": task_id, "task": task.name, QUEUE_LOCK: NAME, **headers}
    message = kombu.Message(
        b"[[], {}, {}]", content_type="application/json", content_encoding="utf-8", headers=headers
    )
    return Request(message, app=app, task=task)


STAMPS = [(["batch"], value) for value in (None, ["batch"], {"batch": [{}]}, {"batch": 5})]
STAMPS += [(names, {"batch": "1"}) for names in ([["batch"]], 5)]


@pytest.mark.parametrize(("names", "stamps"), STAMPS)
def test_forged_stamps_do_not_hide_revoked_requests(monkeypatch, names, stamps):
    monkeypatch.setitem(state.revoked_stamps, "batch", ["1"])
    task, monitor = QUEUED_TASKS[1], worker.Monitor()
    task.apply_async(task_id="queued")
    requests = [
        received(task, "forged", stamped_headers=names, stamps=stamps),
        received(task, "queued", stamped_headers=["batch"], stamps={"batch": ["1"]}),
    ]
    for request in requests:
        monitor.received[request.id] = request
    monitor.check()
    assert held() == []
    assert list(monitor.received) == ["forged"]


# A sender chooses the id.

LONG = "x" * 1_000_000


def size_of(redis_server):
    return sum(redis_server.memory_usage(key, samples=0) for key in redis_server.scan_iter("*"))


@pytest.mark.parametrize("task", KEPT_TASKS, ids=lambda task: task.name)
def test_long_ids_and_thread_names_need_little_memory_in_redis(redis_server, monkeypatch, task):
    monkeypatch.setattr(threading.current_thread(), "name", LONG)
    before = size_of(redis_server)
    for number in range(3):
        assert execute(task, f"{LONG}{number}") is None
        with locks.lock(NAME):
            assert len(locks.get(NAME).holder.thread) == 255
            execute(task, f"{LONG}{number}")
    assert size_of(redis_server) - before < 100_000
    for info in locks.active(f"{NAME}*"):  # of a retry
        locks.force_release(info.name)


def test_a_queued_task_with_a_long_id_is_not_returned_for_another():
    task = QUEUED_TASKS[1]
    assert task.apply_async(task_id=LONG).id == LONG
    assert len(locks.get(NAME).holder.task_id) == 256
    assert task.delay().id not in (LONG, locks.get(NAME).holder.task_id)
    assert task.apply_async(task_id=LONG).id == LONG
    locks.force_release(NAME)


def test_a_redelivered_task_with_a_long_id_is_run_again_later():
    errors = []

    def deliver_again(argument=None):
        again = start(lambda: execute(KEPT_TASKS[0], LONG, {"redelivered": True}))
        errors.append(again.result())

    assert execute(task_below("first", deliver_again), LONG) is None
    assert [type(each) for each in errors] == [Retry]
