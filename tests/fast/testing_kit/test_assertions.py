"""The assertions of the testing kit pass and fail correctly."""

import pytest
from celery import Celery

from django_redislock import locks, single_instance
from django_redislock.testing import (
    assert_nothing_held,
    assert_retried,
    assert_skipped,
    conflict,
    held_elsewhere,
)

NAME = "tests:kit"


@pytest.fixture
def app():
    return Celery("tests.kit", broker="memory://", backend="cache+memory://", set_as_current=False)


@pytest.fixture
def work(app):
    @app.task(name="kit.work", shared=False)
    @single_instance(unique_on=["number"])
    def work(number):
        return "ran"

    return work


def fails(match):
    return pytest.raises(AssertionError, match=match)


def test_a_held_lock_is_named_with_its_holder_in_printable_text() -> None:
    held = held_elsewhere("tests:\u202ekit", holder_task_id="task-1\x1b[2J")
    with held, fails(r"'tests:\\u202ekit' on 'default' by .*task-1") as error:
        assert_nothing_held(within=0)
    assert str(error.value).replace("\n", "").isprintable()


def test_a_held_lock_of_another_alias_is_found(settings) -> None:
    elsewhere = settings.CACHES["default"] | {"KEY_PREFIX": "elsewhere"}
    settings.CACHES = settings.CACHES | {"other": elsewhere}
    with held_elsewhere(NAME, using="other"):
        assert_nothing_held(using="default", within=0)
        for using in ({}, {"using": "other"}):
            with fails("on 'other'"):
                assert_nothing_held(**using, within=0)


def test_a_lock_may_be_released_within_the_time_limit() -> None:
    locks.lock(NAME, timeout=0.3, auto_renewal=False).acquire()
    with pytest.raises(AssertionError):
        assert_nothing_held(within=0)
    assert_nothing_held(within=10)


def test_a_queued_task_holds_a_lock_and_a_cooldown_does_not(app) -> None:
    @single_instance(mode="until_executing")
    @app.task(name="kit.queued", shared=False)
    def queued():
        pass

    with conflict(queued), fails(r"kit\.queued .*, queued"):
        assert_nothing_held(within=0)
    with locks.lock(NAME, at_least_for=60):
        pass
    assert locks.get(NAME).state == "cooldown"
    assert_nothing_held(within=0)
    locks.force_release(NAME)


def test_assert_skipped_fails_for_a_task_that_runs_and_for_another_task(app, work) -> None:
    @app.task(name="kit.other", shared=False)
    def other(): ...

    with fails(r"Task kit\.work was not skipped within 0 s"), assert_skipped(work, within=0):
        work.apply([7])
    with conflict(work, 7), assert_skipped() as skips:  # any task counts
        work.apply([7])
    assert [(skip["sender"], skip["args"]) for skip in skips] == [(work, (7,))]
    with fails("No task was skipped"), assert_skipped(within=0):
        pass
    with conflict(work, 7), fails(r"Task kit\.other was not s"), assert_skipped(other, within=0):
        work.apply([7])


def test_assert_retried_fails_for_a_skipped_task_and_for_its_own_retry(app, work) -> None:
    @app.task(bind=True, name="kit.own", shared=False, max_retries=1)
    @single_instance
    def own(self):
        if not self.request.retries:
            raise self.retry(countdown=0)
        return "ran"

    message = r"Task kit\.work was not retried for a conflict"
    with conflict(work, 7), fails(message), assert_retried(work, within=0):
        work.apply([7])
    with fails(r"Task kit\.own was not retried"), assert_retried(own, within=0):
        assert own.apply().result == "ran"
