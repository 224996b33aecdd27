"""Whoever can send a task chooses its id, its arguments and its headers. None of them lets it run
beside another, and none of them breaks what looks at it."""

import logging

from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Retry
from hypothesis import example, given
from hypothesis import strategies as st

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery.message import AGAIN, CONFLICTS, DUPLICATE, EXPECTED, PLACE

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


def task_with_a_place(on_conflict):
    task = app.task(name=f"messages.placed.{on_conflict}")(body)
    single_instance(mode="until_executed", on_conflict=on_conflict, key=NAME)(task)
    return app.tasks[task.name]


TASKS = [
    task_that("skip", key=NAME),
    task_that("raise", key=NAME),
    task_that("retry", key=NAME, max_retries=3),
    task_that("wait", key=NAME, blocking_timeout=0.01),
    task_with_a_place("skip"),
    task_with_a_place("replace"),
]
BY_ARGUMENT = task_that("skip", unique_on=["argument"])

headers = st.dictionaries(
    st.sampled_from([AGAIN, CONFLICTS, DUPLICATE, EXPECTED, PLACE]) | texts,
    json_values,
    max_size=4,
)


deliveries = st.none() | st.dictionaries(st.just("redelivered"), json_values)


def execute(task, task_id, args=(), headers=None, delivery=None):
    """As a worker executes a message: the error with which it ends, if any."""
    request = {
        "id": task_id,
        "args": args,
        "kwargs": {},
        "headers": headers,
        "delivery_info": delivery,
        "is_eager": False,
    }
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
@example(TASKS[4], "id", {PLACE: "another"}, None)
@example(TASKS[4], "id", {PLACE: NAME, CONFLICTS: [1]}, None)
@example(TASKS[5], "id", {PLACE: {"a": 1}}, None)
@example(TASKS[0], "\ud800\x1b[31m\u202e\n", {PLACE: 1}, None)
def test_headers_let_nobody_run_beside_another(caplog, task, task_id, told, delivery):
    caplog.clear()
    caplog.set_level(logging.DEBUG, "django_redislock")
    ran.clear()
    with locks.lock(NAME, timeout=30):
        error = execute(task, task_id, headers=told, delivery=delivery)
    assert ran == []
    assert error is None or isinstance(error, AlreadyRunning | Retry), repr(error)
    for record in caplog.records:
        if record.name == "django_redislock":
            assert record.getMessage().isprintable()


@fuzzed(20)
@given(json_values)
@example([[[[1]]] * 3, {"a": {"b": float("nan")}}])
@example("\ud800")
@example("9" * 5000)
@example("{argument.__class__}")
def test_arguments_make_one_name_or_an_error(argument):
    ran.clear()
    error = execute(BY_ARGUMENT, "id", args=(argument,))
    assert (len(ran) == 1) is (error is None)
    assert error is None or isinstance(error, TypeError | ValueError), repr(error)
