"""`was_skipped()` of a Celery task, also after its result was stored."""

import pytest
from celery.result import EagerResult

from django_redislock import locks, single_instance
from django_redislock.celery.message import DUPLICATE
from django_redislock.tasks import was_skipped

from .tools import make_task, run_message

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def make(app, name):
    """Return a function that makes a task with these options of Celery."""

    def make(**options):
        def task(): ...

        return app.task(name=f"tests.{name}", **options)(single_instance(key=name)(task))

    return make


def skip(app, task, name, **options):
    with locks.lock(name):
        return run_message(app, task, **options)


def test_a_skipped_task_is_told_from_one_that_returned_none(app, make, name):
    task = make()
    assert skip(app, task, name) is None
    result = app.AsyncResult("own")
    assert (result.state, result.get(), was_skipped(result)) == ("SUCCESS", None, True)
    app.backend.forget("own")
    assert run_message(app, task) is None
    result = app.AsyncResult("own")
    assert (result.state, was_skipped(result)) == ("SUCCESS", False)


def test_a_task_that_did_not_succeed_or_ignores_its_result_was_not_skipped(app, make, name):
    skip(app, make(ignore_result=True), name)
    assert was_skipped(app.AsyncResult("own")) is False
    for state, error in (("PENDING", None), ("FAILURE", KeyError()), ("REVOKED", KeyError())):
        app.backend.store_result("own", error, state)
        assert was_skipped(app.AsyncResult("own")) is False


def test_a_duplicate_whose_result_is_expected(app, name, signals):
    task = make_task(app, name, body=lambda: pytest.fail("it ran"))
    assert run_message(app, task, headers={DUPLICATE: "first"}) is None
    assert signals == [("skipped", "own", "first")]
    assert was_skipped(app.AsyncResult("own"))


def test_an_eager_task(eager, name):
    task = make_task(eager, name)
    assert was_skipped(task.delay()) is False
    with locks.lock(name):
        result = task.apply()
    assert isinstance(result, EagerResult)
    assert was_skipped(result) is True


def test_anything_else_is_refused():
    with pytest.raises(TypeError, match=r"AsyncResult of Celery or a TaskResult"):
        was_skipped("id")
