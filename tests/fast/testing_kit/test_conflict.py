"""conflict() holds the lock of a task's call, as another instance would."""

import uuid

import pytest

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.testing import (
    Other,
    assert_nothing_held,
    assert_retried,
    assert_skipped,
    conflict,
)
from tests.fast.celery.tools import own_app, run_message


@pytest.fixture
def app():
    name = f"tests.kit.{uuid.uuid4().hex}"  # so that apps do not share data in memory
    app = own_app(name)
    app.conf.task_default_queue = name
    return app


def run_it(number, full=False):
    return f"ran {number}"


def below(app, **options):
    return app.task(single_instance(**options)(run_it), name="kit.work")


def above(app, mode, **options):
    return single_instance(mode=mode, **options)(app.task(run_it, name="kit.work"))


@pytest.mark.parametrize(
    "options",
    [
        {"key": lambda number, **_: f"kit:{number}"},
        {"limit": 2, "unique_on": ["number"]},
        {"at_least_for": 60},
        {"using": "django_redis"},
    ],
    ids=" ".join,
)
def test_a_call_conflicts_when_it_begins(app, options) -> None:
    work = below(app, **options)
    with conflict(work, 7) as other, assert_skipped(work) as skips:
        assert work.apply([7]).result is None
    assert (skips[0]["name"], skips[0]["holder_task_id"]) == (other.name, other.task_id)
    if "at_least_for" not in options:
        assert work.apply([7]).result == "ran 7"
    assert_nothing_held()
    locks.force_release(other.name)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("until_executing", {"unique_on": ["number"]}),
        ("until_and_while_executing", {"limit": 2}),
    ],
)
def test_a_task_conflicts_when_it_is_sent_and_when_it_begins(app, mode, options) -> None:
    work = above(app, mode, **options)
    with conflict(work, 7) as other:
        with assert_skipped(work) as skips:
            assert work.delay(7).id == other.task_id
        assert skips[0]["holder_task_id"] == other.task_id
        with assert_skipped(work):
            assert work.apply([7]).result is None
    app.conf.task_always_eager = True
    assert work.delay(7).result == "ran 7"
    assert_nothing_held()


def test_the_arguments_select_the_conflicting_calls(app) -> None:
    work = below(app, unique_on="*")
    with conflict(work, number=7, full=True):
        assert work.apply([8, True]).result == "ran 8"
        assert work.apply([7]).result == "ran 7"
        assert work.apply([7, True]).result is None


def test_a_task_is_retried(app) -> None:
    work = below(app, on_conflict="retry", countdown=0.05)
    with conflict(work, 7) as other, assert_retried(work, within=0) as retries:
        run_message(app, work, 7)
    assert retries[0]["reason"].exc.task_id == other.task_id


def test_a_function_and_a_method_conflict() -> None:
    @single_instance(on_conflict="raise")
    def work():
        return "ran"

    class Depot:
        number = 7

        @single_instance(key="depot:{self.number}", on_conflict="raise")
        def count(self):
            return "ran"

    depot = Depot()
    with conflict(work) as other, pytest.raises(AlreadyRunning) as caught:
        work()
    assert (caught.value.name, caught.value.task_id) == (other.name, other.task_id)
    with conflict(depot.count) as other, pytest.raises(AlreadyRunning):
        depot.count()
    assert other == Other("depot:7", other.task_id)
    assert (work(), depot.count()) == ("ran", "ran")


def test_invalid_tasks_and_arguments_are_refused(app) -> None:
    with pytest.raises(TypeError, match="task must be decorated with single_instance, got"):
        conflict(app.task(run_it), 7).__enter__()
    with pytest.raises(TypeError, match="number"):
        conflict(below(app, unique_on=["number"])).__enter__()
