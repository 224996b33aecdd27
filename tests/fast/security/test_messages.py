"""The sender of a task chooses its id, its arguments and its headers. They cannot make two tasks
run at once, and cannot break the inspection of locks."""

import contextlib
import json
import logging
import math

from celery import Celery
from celery.app.trace import build_tracer
from hypothesis import example, given
from hypothesis import strategies as st

from django_redislock import locks, single_instance
from django_redislock.celery.message import AGAIN, CONFLICTS, DUPLICATE, OURS, QUEUE_LOCK

from .forging import fuzzed, json_values, texts

NAME = "messages:kept"

app = Celery("messages", broker="memory://", set_as_current=False)
app.conf.task_ignore_result = True

ran = []


def body(argument=None):
    ran.append(argument)


def task_below(name, body=body, **options):
    """A task whose lock is taken when it is executed."""
    return app.task(name=f"messages.{name}")(single_instance(key=NAME, **options)(body))


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


FORGED = sorted(
    {*OURS, "id", "args", "kwargs", "headers", "retries", "is_eager", "called_directly", "chord"}
    | {"group", "chain", "callbacks", "errbacks", "children", "delivery_info", "_children"}
    # Celery passes these on to the next execution, which django_redislock sends.
    | {"expires", "eta", "timelimit", "reply_to", "hostname", "ignore_result", "stamps"}
)

KEPT = task_below("kept", hold_on_retry=True)
UNTIL_EXECUTING = task_above("until_executing")
UNTIL_EXECUTED = task_above("until_executed", on_conflict="skip")
UNTIL_AND_WHILE = task_above("until_and_while_executing")
QUEUED_TASKS = [UNTIL_EXECUTING, UNTIL_EXECUTED, UNTIL_AND_WHILE]
RETRIED = task_below("retry", on_conflict="retry", max_retries=3)
TASKS = [
    *QUEUED_TASKS,
    task_above("until_executed", on_conflict="replace"),
    KEPT,
    RETRIED,
    task_below("skip"),
    task_below("raise", on_conflict="raise"),
    task_below("wait", on_conflict="wait", blocking_timeout=0.01),
]

extreme = st.sampled_from([math.inf, -math.inf, math.nan, 1e18, 3e8, 10**18, "x" * 100_000])
extreme |= st.sampled_from([json.loads("[" * 900 + "]" * 900), {str(n): [n] for n in range(9000)}])
headers = st.dictionaries(st.sampled_from(OURS) | texts, extreme | json_values, max_size=4)
forged = st.dictionaries(st.sampled_from(FORGED), extreme | json_values, max_size=5)


def execute_forged(task, attributes):
    # The worker itself makes the mapping.
    delivery = {"redelivered": attributes.get("delivery_info")}
    with contextlib.suppress(Exception):  # Celery itself may fail on forged data
        execute(task, "forged", **attributes | {"delivery_info": delivery})


def is_later_run(task, task_id="later", **attributes):
    ran.clear()
    return execute(task, task_id, **attributes) is None and ran == [None]


def held():
    return [(info.name, info.token) for info in locks.active(f"{NAME}*")]


@fuzzed(60)
@given(st.sampled_from(TASKS), forged, st.none() | headers, st.booleans())
@example(RETRIED, {}, {CONFLICTS: -(10**400)}, False)
@example(RETRIED, {}, {CONFLICTS: True, AGAIN: "x"}, False)
@example(UNTIL_EXECUTED, {}, {QUEUE_LOCK: NAME, CONFLICTS: [1]}, False)
@example(KEPT, {"id": "\ud800\x1b[31m\u202e\n"}, {QUEUE_LOCK: 1}, False)
@example(UNTIL_AND_WHILE, {AGAIN: 3e8}, None, False)
@example(KEPT, {DUPLICATE: {"a": 1}}, None, False)
@example(UNTIL_EXECUTED, {DUPLICATE: "first", "children": 5}, None, False)
@example(UNTIL_EXECUTING, {QUEUE_LOCK: NAME, "id": None}, None, True)
@example(UNTIL_EXECUTED, {QUEUE_LOCK: NAME, AGAIN: True, DUPLICATE: "queued"}, None, True)
@example(UNTIL_AND_WHILE, {QUEUE_LOCK: f"{NAME}:queued", "retries": 1}, None, True)
def test_a_forged_message_does_not_run_next_to_a_holder_and_changes_no_lock(
    caplog, task, attributes, headers, is_queued
):
    caplog.clear()
    caplog.set_level(logging.DEBUG, "django_redislock")
    ran.clear()
    with locks.lock(NAME, timeout=30):
        execute_forged(task, {"headers": headers})
        assert task is UNTIL_EXECUTING or ran == []
    for name, _ in held():
        locks.force_release(name)  # of a retry
    later = {}
    if is_queued and task in QUEUED_TASKS:
        task.apply_async(task_id="queued")
        later = {"task_id": "queued", "headers": {QUEUE_LOCK: held()[0][0]}}
    before = held()
    execute_forged(task, attributes)
    assert held() == before
    assert is_later_run(task, **later)
    assert held() == []
    for record in caplog.records:
        assert record.name != "django_redislock" or record.getMessage().isprintable()


# A sender chooses the id.

LONG = "x" * 1_000_000


def test_a_long_id_needs_little_memory_and_is_not_taken_for_another(redis_server):
    task, before = UNTIL_EXECUTED, size_of(redis_server)
    assert task.apply_async(task_id=LONG).id == LONG
    assert size_of(redis_server) - before < 100_000
    assert len(locks.get(NAME).holder.task_id) == 256
    assert task.delay().id not in (LONG, locks.get(NAME).holder.task_id)
    assert task.apply_async(task_id=LONG).id == LONG
    locks.force_release(NAME)


def size_of(redis_server):
    return sum(redis_server.memory_usage(key, samples=0) for key in redis_server.scan_iter("*"))
