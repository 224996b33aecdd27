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

from .forging import json_values, texts
from .fuzzing import fuzzed

NAME = "messages"

app = Celery("messages", broker="memory://", set_as_current=False)
app.conf.task_ignore_result = True

ran = []


def body(argument=None):
    ran.append(argument)


def task_that(on_conflict, **options):
    name = f"messages.{on_conflict}.{len(app.tasks)}"
    return app.task(name=name)(single_instance(on_conflict=on_conflict, **options)(body))


def task_with_a_queue_lock(on_conflict):
    task = app.task(name=f"messages.queued.{on_conflict}")(body)
    single_instance(mode="until_executed", on_conflict=on_conflict, key=NAME)(task)
    return app.tasks[task.name]


TASKS = [
    task_that("skip", key=NAME),
    task_that("raise", key=NAME),
    task_that("retry", key=NAME, max_retries=3),
    task_that("wait", key=NAME, blocking_timeout=0.01),
    task_with_a_queue_lock("skip"),
    task_with_a_queue_lock("replace"),
]

headers = st.dictionaries(st.sampled_from(OURS) | texts, json_values, max_size=4)
deliveries = st.none() | st.dictionaries(st.just("redelivered"), json_values)


def execute(task, task_id, args=(), headers=None, delivery=None):
    """Execute a message like a worker, and return the error with which it ends, if any."""
    request = {"id": task_id, "args": args, "kwargs": {}, "is_eager": False}
    request |= {"headers": headers, "delivery_info": delivery}
    trace = build_tracer(task.name, task, app=app, eager=True, propagate=False)
    ended = trace(task_id, args, {}, request)
    return ended.info.retval if ended.info else None


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
        error = execute(task, task_id, headers=headers, delivery=delivery)
    assert ran == []
    assert error is None or isinstance(error, AlreadyRunning | Retry), repr(error)
    for record in caplog.records:
        if record.name == "django_redislock":
            assert record.getMessage().isprintable()


# A sender can forge everything that is read from the request.

KEPT = "messages:kept"

READ = {"id", "args", "kwargs", "headers", "delivery_info", "retries", "is_eager"}
READ |= {"called_directly", "chord", "group", "chain", "callbacks", "errbacks", "children"}
"""The names that django_redislock reads from a request."""

FORGED = sorted(
    {*READ, *OURS}
    # Celery passes these on to the next execution, which django_redislock sends.
    | {"expires", "eta", "timelimit", "reply_to", "hostname", "ignore_result", "stamps"}
    # Celery keeps the children there.
    | {"_children"}
)


def failing_body(argument=None):
    ran.append(argument)
    raise LookupError(argument)


def kept_task(name, body=body, above=None, **options):
    """A task whose lock is named KEPT."""
    if above is None:
        body = single_instance(key=KEPT, hold_on_retry=True)(body)
    task = app.task(name=f"messages.kept.{name}", **options)(body)
    if above is not None:
        single_instance(mode=above, key=KEPT)(task)
    return app.tasks[task.name]


KEPT_TASKS = [
    kept_task("while_executing"),
    kept_task("until_executing", above="until_executing"),
    kept_task("until_executed", above="until_executed"),
    kept_task("apart", above="until_and_while_executing"),
]
RETRIED = kept_task("retried", failing_body, autoretry_for=(LookupError,), retry_backoff=True)

LONGEST_KEPT = 3600 + 600
"""Defaults of queue_timeout and retry_backoff_max, in seconds."""

extreme = st.sampled_from([math.inf, -math.inf, math.nan, 1e18, 3e8, 10**18, "x" * 100_000])
extreme |= st.sampled_from([json.loads("[" * 900 + "]" * 900), {str(n): [n] for n in range(9000)}])
forged = st.dictionaries(st.sampled_from(FORGED), extreme | json_values, max_size=5)


def execute_forged(task, attributes):
    """Execute a message whose headers set these attributes of the request, as Celery does it."""
    # The worker itself makes the mapping.
    delivery = {"redelivered": attributes.get("delivery_info")}
    request = {"id": "forged", "is_eager": False, **attributes, "delivery_info": delivery}
    trace = build_tracer(task.name, task, app=app, eager=True, propagate=False)
    with contextlib.suppress(Exception):  # Celery itself may fail on forged data
        trace(request["id"], (), {}, request)


def is_later_run(task):
    ran.clear()
    error = execute(task, "later")
    return ran == [None] and (error is None or isinstance(error, LookupError | Retry))


@fuzzed(60)
@given(st.sampled_from(KEPT_TASKS), forged)
@example(KEPT_TASKS[2], {AGAIN: 3e8})
@example(KEPT_TASKS[0], {DUPLICATE: {"a": 1}})
def test_nothing_is_held_after_a_forged_message(task, attributes):
    execute_forged(task, attributes)
    assert not list(locks.active(f"{KEPT}*"))
    assert is_later_run(task)
    assert not list(locks.active(f"{KEPT}*"))


@fuzzed(30)
@given(st.sampled_from(KEPT_TASKS[1:]), forged)
@example(KEPT_TASKS[1], {QUEUE_LOCK: KEPT, "id": None})
@example(KEPT_TASKS[2], {QUEUE_LOCK: KEPT, AGAIN: True, DUPLICATE: "queued"})
@example(KEPT_TASKS[3], {QUEUE_LOCK: f"{KEPT}:queued", "retries": 1})
def test_a_forged_message_does_not_affect_a_queued_one(task, attributes):
    task.apply_async(task_id="queued")
    before = list(locks.active(f"{KEPT}*"))
    execute_forged(task, attributes)
    assert [(info.name, info.token) for info in locks.active(f"{KEPT}*")] == [
        (info.name, info.token) for info in before
    ]
    ran.clear()
    assert execute(task, "queued", headers={QUEUE_LOCK: before[0].name}) is None
    assert ran == [None]
    assert not list(locks.active(f"{KEPT}*"))


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
    kept = locks.get(KEPT)
    assert kept is None or kept.ttl <= LONGEST_KEPT
    locks.force_release(KEPT)
    assert is_later_run(RETRIED)
    locks.force_release(KEPT)


# A worker looks for revoked requests. A sender can forge their stamps.

FORGED_STAMPS = [
    {"stamped_headers": ["batch"], "stamps": None},
    {"stamped_headers": ["batch"], "stamps": ["batch"]},
    {"stamped_headers": ["batch"], "stamps": {"batch": [{}]}},
    {"stamped_headers": ["batch"], "stamps": {"batch": 5}},
    {"stamped_headers": [["batch"]], "stamps": {"batch": "1"}},
    {"stamped_headers": 5, "stamps": {"batch": "1"}},
]


def received(task, task_id, **headers):
    """Return the request that a worker makes of a message."""
    headers = {"id": task_id, "task": task.name, QUEUE_LOCK: KEPT, **headers}
    message = kombu.Message(
        b"[[], {}, {}]", content_type="application/json", content_encoding="utf-8", headers=headers
    )
    return Request(message, app=app, task=task)


@pytest.mark.parametrize("forged", FORGED_STAMPS)
def test_forged_stamps_do_not_hide_revoked_requests(monkeypatch, forged):
    monkeypatch.setitem(state.revoked_stamps, "batch", ["1"])
    task, monitor = KEPT_TASKS[2], worker.Monitor()
    task.apply_async(task_id="queued")
    requests = [
        received(task, "forged", **forged),
        received(task, "queued", stamped_headers=["batch"], stamps={"batch": ["1"]}),
    ]
    for request in requests:
        monitor.received[request.id] = request
    monitor.check()
    assert not list(locks.active(f"{KEPT}*"))
    assert list(monitor.received) == ["forged"]


# A sender chooses the id.

LONG = "x" * 1_000_000


def size_of(redis_server):
    return sum(redis_server.memory_usage(key, samples=0) for key in redis_server.scan_iter("*"))


@pytest.mark.parametrize("task", KEPT_TASKS, ids=lambda task: task.name)
def test_long_task_ids_need_little_memory_in_redis(redis_server, task):
    before = size_of(redis_server)
    for number in range(3):
        assert execute(task, f"{LONG}{number}") is None
        with locks.lock(KEPT):
            assert execute(task, f"{LONG}{number}") is None or task is KEPT_TASKS[3]
    assert size_of(redis_server) - before < 100_000
    for info in locks.active(f"{KEPT}*"):  # of a retry
        locks.force_release(info.name)


def test_a_long_thread_name_needs_little_memory_in_redis(redis_server):
    before = size_of(redis_server)
    thread = threading.current_thread()
    name, thread.name = thread.name, LONG
    try:
        with locks.lock(KEPT):
            assert len(locks.get(KEPT).holder.thread) == 255
    finally:
        thread.name = name
    assert size_of(redis_server) - before < 20_000


def test_a_queued_task_with_a_long_id_is_not_returned_for_another():
    task = KEPT_TASKS[2]
    first = task.apply_async(task_id=LONG)
    assert first.id == LONG
    assert len(locks.get(KEPT).holder.task_id) == 256
    second = task.delay()
    assert second.id not in (LONG, locks.get(KEPT).holder.task_id)
    assert task.apply_async(task_id=LONG).id == LONG
    locks.force_release(KEPT)


def test_a_redelivered_task_with_a_long_id_is_run_again_later():
    errors = []

    def deliver_again(argument=None):
        delivery = {"redelivered": True}
        again = start(lambda: execute(KEPT_TASKS[0], LONG, delivery=delivery))
        errors.append(again.result())

    first = app.task(name="messages.kept.first")(single_instance(key=KEPT)(deliver_again))
    assert execute(first, LONG) is None
    assert [type(each) for each in errors] == [Retry]
