"""`was_skipped()` of a Celery task, also after its result was stored."""

import json

import pytest
from celery import chain, chord
from celery.app.task import Context
from celery.result import AsyncResult, EagerResult

from django_redislock import locks, single_instance
from django_redislock.tasks import was_skipped

from .tools import make_task, run_message

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def task(app, name):
    @app.task(name=f"tests.{name}")
    @single_instance(key=name)
    def task():
        return None

    return task


def skip(app, task, hold, name, **options):
    with locks.lock(name):
        return run_message(app, task, **options)


def test_a_skipped_task_is_told_from_one_that_returned_none(app, task, hold, name):
    assert skip(app, task, hold, name) is None
    result = app.AsyncResult("own")
    assert (result.state, result.get(), was_skipped(result)) == ("SUCCESS", None, True)
    assert next(each for _, each in result.collect()) is None
    app.backend.forget("own")
    assert run_message(app, task) is None
    result = app.AsyncResult("own")
    assert (result.state, was_skipped(result)) == ("SUCCESS", False)


@pytest.mark.parametrize("state", ["PENDING", "STARTED", "RETRY", "FAILURE", "REVOKED"])
def test_a_task_that_did_not_succeed_was_not_skipped(app, state):
    error = None if state in ("PENDING", "STARTED") else LookupError("it")
    app.backend.store_result("own", error, state)
    assert was_skipped(app.AsyncResult("own")) is False


def test_a_skipped_task_without_a_trail(app, name, hold):
    @app.task(name=f"tests.{name}", trail=False)
    @single_instance(key=name)
    def task(): ...

    skip(app, task, hold, name)
    assert was_skipped(app.AsyncResult("own"))


def test_a_skipped_task_that_ignores_its_result(app, name, hold):
    @app.task(name=f"tests.{name}", ignore_result=True)
    @single_instance(key=name)
    def task(): ...

    skip(app, task, hold, name)
    assert was_skipped(app.AsyncResult("own")) is False


def test_a_skipped_member_of_a_chain_passes_none_on(app, task, name, hold, sent):
    @app.task(name=f"tests.{name}.next")
    def following(value):
        return [value]

    chain(task.si(), following.s()).apply_async()
    [headers] = sent
    rest = {"chain": [json.loads(json.dumps(following.s().set(task_id="next")))]}
    skip(app, task, hold, name, headers=rest, traced=True, task_id=headers["id"])
    assert was_skipped(app.AsyncResult(headers["id"]))
    assert [each["id"] for each in sent[1:]] == ["next"]
    assert run_message(app, following, None, task_id="next") == [None]


def test_a_duplicate_whose_result_is_expected(app, name, sent):
    task = make_task(app, name)
    task.delay()
    chord([task.si(), task.si()], task.si()).apply_async()
    headers = sent[1]
    assert run_message(app, task, headers=headers, task_id=headers["id"]) is None
    assert was_skipped(app.AsyncResult(headers["id"]))


@pytest.mark.parametrize("mode", ["while_executing", "until_executed"])
def test_an_eager_task(eager, name, mode):
    task = make_task(eager, name, mode)
    assert was_skipped(task.delay()) is False
    with locks.lock(name, metadata={"a": 1}):
        result = task.apply()
        assert isinstance(result, EagerResult)
        assert was_skipped(result) is True


@pytest.mark.parametrize("value", [None, "id", object(), AsyncResult, Context()])
def test_anything_else_is_refused(value):
    with pytest.raises(TypeError, match=r"AsyncResult of Celery or a TaskResult"):
        was_skipped(value)
