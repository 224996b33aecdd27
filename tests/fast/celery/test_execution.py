"""The lock and the queue lock of a task while a worker executes it, and at its end."""

import functools
from contextlib import suppress

import pytest
from celery import Task, chain, group
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_failure, task_revoked
from kombu.exceptions import OperationalError

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.celery.message import AGAIN, CONFLICTS, DUPLICATE, QUEUE_LOCK

from .tools import (
    Unsendable,
    decorated,
    elsewhere,
    held_by,
    make_task,
    outcomes,
    queue_lock,
    run_message,
    state_of,
)

WITH_A_LOCK = ["while_executing", "until_executed", "until_and_while_executing"]


def revoke(app, task, task_id="own", *, args=(), kwargs=None):
    """Have a worker drop a revoked message."""
    request = Context(id=task_id, args=args, kwargs=kwargs or {})
    task_revoked.send(
        sender=app.tasks[task.name], request=request, terminated=False, signum=None, expired=False
    )


@pytest.mark.parametrize(
    ("mode", "held"),
    [("until_executing", False), ("until_executed", True), ("until_and_while_executing", True)],
)
def test_the_mode_says_what_is_held_while_the_task_runs(eager, name, mode, held):
    def body():
        return [*state_of(name), current_lock() is not None]

    result = make_task(eager, name, mode, body=body).delay()
    assert result.get() == [result.id if held else None, None, held]
    assert state_of(name) == (None, None)


@pytest.mark.parametrize("track_started", [False, True])
def test_a_replaced_task_does_not_run_after_the_newer_one(app, name, track_started):
    ran, options = [], {"track_started": track_started}  # that is stored over "REVOKED"
    body = functools.partial(ran.append, 1)
    task = make_task(app, name, on_conflict="replace", body=body, task=options)
    first, second = task.delay(), task.delay()
    assert first.state == "REVOKED"
    for each in second, first:
        run_message(app, task, headers={QUEUE_LOCK: name}, task_id=each.id)
    assert ran == [1]
    assert app.AsyncResult(first.id).state == "REVOKED"  # as `first` caches its state
    assert held_by(name) == {}


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
def test_at_least_for_counts_from_the_start_and_blocks_no_separate_queue_lock(eager, name, mode):
    task = make_task(eager, name, mode, at_least_for=60)
    assert task.delay().get() == "ran"
    info = locks.get(name)
    assert (info.state, 50 < info.ttl <= 60) == ("cooldown", True)
    assert locks.get(f"{name}:queued") is None
    assert task.delay().get() is None


# Messages that end without running


def test_a_revoked_message_releases_its_queue_lock_and_no_other(app, name):
    task = make_task(app, name, at_least_for=60)  # there is no cooldown if it did not begin
    result = task.delay()
    revoke(app, task, "another")
    assert locks.get(name).holder.task_id == result.id
    revoke(app, task, result.id)
    assert locks.get(name) is None


def test_a_failure_before_the_body_releases_the_queue_lock(app, name):
    task = make_task(app, name)
    result = task.delay()
    about = {"task_id": result.id, "args": (), "kwargs": {}, "traceback": None, "einfo": None}
    task_failure.send(sender=app.tasks[task.name], exception=LookupError(), **about)
    assert locks.get(name) is None


class ClosedBefore(Task):
    error = Ignore("closed")

    def before_start(self, *args):
        raise self.error


class Requeued(ClosedBefore):
    acks_late, error = True, Reject("later", requeue=True)


@pytest.mark.parametrize(
    ("base", "mode", "kept"),
    [
        (ClosedBefore, "until_and_while_executing", False),
        (Requeued, "until_executed", True),
    ],
)
def test_a_task_class_may_end_the_task_before_its_body(app, name, base, mode, kept):
    task = make_task(app, name, mode, task={"base": base}, body=lambda: pytest.fail("it ran"))
    task.apply_async(task_id="own")
    lock_name = queue_lock(name, mode).name
    run_message(app, task, headers={QUEUE_LOCK: lock_name})
    assert held_by(name) == ({lock_name: "own"} if kept else {})


# Retries


@pytest.mark.parametrize("mode", WITH_A_LOCK)
def test_a_task_that_sends_itself_again_and_returns_keeps_its_lock(app, name, sent, mode):
    def body():
        if not sent:
            task.retry(countdown=100, throw=False)
        return "ran"

    task = make_task(app, name, mode, hold_on_retry=True, body=body)
    assert run_message(app, task) == "ran"
    assert held_by(name)[name] == "own"
    assert 3690 < locks.get(name).ttl <= 3700
    assert run_message(app, task, headers={QUEUE_LOCK: sent[0].get(QUEUE_LOCK)}) == "ran"
    assert held_by(name) == {}
    assert len(sent) == 1


@pytest.mark.parametrize("options", [{"hold_on_retry": True}, {"mode": "until_executed"}])
def test_a_retry_that_cannot_be_sent_keeps_no_lock(app, name, options):
    def fail():
        raise LookupError

    make = app.task(base=Unsendable, autoretry_for=(LookupError,), name=f"tests.{name}")
    run_message(app, decorated(make, fail, key=name, **options))
    assert locks.get(name) is None


@pytest.mark.parametrize("canvas", [chain, group])
def test_a_canvas_that_replaces_a_task_can_contain_the_task(app, name, sent, signals, canvas):
    def give_over(self, has_begun=False):
        if not has_begun:
            raise self.replace(canvas(self.si(True), self.si(True)))
        return "ran"

    task = app.task(bind=True, name=f"tests.{name}")(give_over)
    task = single_instance(mode="until_executed", key=name)(task)
    run_message(app, task)
    assert signals == []
    assert held_by(name) == {}
    members = [each for each in sent if each["task"] == task.name]
    assert len(members) == (1 if canvas is chain else 2)
    for headers in members:
        ours = {QUEUE_LOCK: headers[QUEUE_LOCK]}
        assert run_message(app, task, True, headers=ours, task_id=headers["id"]) == "ran"


# Conflicts when the task runs


def test_a_task_is_sent_again_instead_of_waiting_for_a_queued_one(app, name, sent, signals):
    queued = make_task(app, name)
    queued.apply_async(task_id="queued")

    @app.task(name=f"tests.waiting.{name}")
    @single_instance(key=name, on_conflict="wait")
    def waiting():
        return "ran"

    run_message(app, waiting)
    assert [each["id"] for each in sent] == ["queued", "own"]
    assert (outcomes(name, "own"), signals) == ([], [])
    assert run_message(app, queued, task_id="queued") == "ran"
    headers = {CONFLICTS: sent[1][CONFLICTS], AGAIN: sent[1][AGAIN]}
    assert run_message(app, waiting, headers=headers) == "ran"


def make_retrying(app, name, **options):
    return make_task(app, name, "while_executing", on_conflict="retry", **options)


def test_a_retry_after_a_conflict_keeps_the_headers_and_the_tasks_own_retries(app, name, sent):
    work = make_retrying(app, name, countdown=0.2, task={"max_retries": 0})
    with locks.lock(name):
        assert run_message(app, work, headers={"tenant": "blue"}).type is Retry
    [headers] = sent
    assert (headers["id"], headers["retries"], headers["tenant"]) == ("own", 0, "blue")
    assert headers[CONFLICTS] == 1
    assert outcomes(name, "own") == ["refused"]
    assert run_message(app, work, headers={CONFLICTS: 1}) == "ran"


def test_a_broker_that_counts_whole_seconds_retries_after_one(app, name, sent):
    class Whole(Task):
        """As in a quorum queue of RabbitMQ."""

        def apply_async(self, *args, countdown=None, **options):
            if countdown < 1:
                raise ValueError("countdown")
            return super().apply_async(*args, countdown=countdown, **options)

    work = make_retrying(app, name, countdown=0.2, task={"base": Whole})
    with locks.lock(name):
        assert run_message(app, work).type is Retry
    assert [each["id"] for each in sent] == ["own"]


@pytest.mark.parametrize("traced", [False, True])
def test_a_conflict_is_retried_no_more_often_than_max_retries(app, name, sent, traced):
    work = make_retrying(app, name, max_retries=1)
    with locks.lock(name):
        assert run_message(app, work, traced=traced).type is Retry
        [headers] = sent
        met_again = {CONFLICTS: headers[CONFLICTS]}
        assert run_message(app, work, headers=met_again, traced=traced).type is AlreadyRunning
    assert (headers.get("trace"), len(sent)) == ("1" if traced else None, 1)


@pytest.mark.parametrize(("acks_late", "error"), [(False, OperationalError), (True, Reject)])
def test_a_retry_after_a_conflict_that_cannot_be_sent(app, name, acks_late, error, caplog):
    work = make_retrying(app, name, task={"base": Unsendable, "acks_late": acks_late})
    with locks.lock(name):
        assert run_message(app, work).type is error
    assert ("reject requeue=True" in caplog.text) is acks_late


def test_the_headers_of_queue_locks_are_ignored_by_a_task_without_one(app, name):
    work = make_retrying(app, name)
    headers = {DUPLICATE: "first", QUEUE_LOCK: "another"}
    with locks.lock(name):
        assert run_message(app, work, headers=headers).type is Retry
    assert run_message(app, work, headers=headers) == "ran"


# Redelivered messages


WAITING = {"mode": "while_executing", "on_conflict": "wait", "task": {"acks_late": True}}


@pytest.mark.parametrize("how", [{"redelivered": True}, {"headers": {AGAIN: True}}], ids=str)
@pytest.mark.parametrize(
    "options", [*({"mode": mode, "limit": 2} for mode in WITH_A_LOCK), WAITING], ids=str
)
def test_a_message_neither_runs_next_to_its_first_delivery_nor_waits_for_it(
    app, name, sent, options, how
):
    def body():
        ran.append(1)
        elsewhere(lambda: run_message(app, task, **how))
        return "ran"

    ran = []
    task = make_task(app, name, body=body, **options)
    assert run_message(app, task) == "ran"
    assert ran == [1]
    assert [(each["id"], each[AGAIN]) for each in sent] == [("own", True)]
    assert outcomes(name, "own") == ["released"]


# A direct call from inside the body


@pytest.mark.parametrize(
    "options", [{"mode": "until_executed"}, {"on_conflict": "retry"}], ids=str
)
def test_a_direct_call_with_other_arguments_is_not_the_message(app, name, sent, options):
    def work(number):
        ran.append(number)
        with suppress(AlreadyRunning):
            return number, task(number + 1)
        return number, "refused"

    ran = []
    make = app.task(acks_late=True, name=f"tests.{name}")
    task = decorated(make, work, key=f"{name}:{{number}}", **options)
    with locks.lock(f"{name}:2"):
        result = run_message(app, task, 1, headers={QUEUE_LOCK: f"{name}:1", AGAIN: True})
    assert result == (1, None if "mode" in options else "refused")
    assert (ran, sent) == ([1], [])


# Arguments that differ when the task runs


def by_retry(self, pages):
    raise self.retry(args=(pages[1:],), countdown=0)


def by_replace(self, pages):
    raise self.replace(self.si(pages[1:]))


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("body", [by_retry, by_replace])
def test_a_task_that_goes_on_with_other_arguments_takes_their_queue_lock_or_runs_later(
    app, name, sent, body, is_taken
):
    made = app.task(bind=True, name=f"tests.{name}")(body)
    task = single_instance(mode="until_executed", key=lambda pages: f"{name}:{pages[0]}")(made)
    others = [task.delay([2]).id] if is_taken else []
    run_message(app, task, [1, 2])
    assert held_by(name) == {f"{name}:2": others[0] if is_taken else "own"}
    assert (sent[-1]["id"], sent[-1][QUEUE_LOCK]) == ("own", f"{name}:2")
    assert task.delay([1, 2]).id != "own"
    if is_taken:
        run_message(app, task, [2], headers={QUEUE_LOCK: sent[1][QUEUE_LOCK]})
        assert sent[-1]["id"] == "own"


def test_a_queue_lock_with_another_name_than_the_lock_is_released_at_the_start(app, name, sent):
    def work(pages):
        return held_by(name)

    task = app.task(name=f"tests.{name}")(work)
    task = single_instance(mode="until_executed", key=f"{name}:{{pages}}")(task)
    task.apply_async(((1, 2),), task_id="own")
    taken = sent[0][QUEUE_LOCK]
    assert taken.startswith(f"{name}:(1, 2)")
    assert held_by(name) == {taken: "own"}
    running = run_message(app, task, [1, 2], headers={QUEUE_LOCK: taken})  # as they come from JSON
    assert running == {f"{name}:[1, 2]": "own"}
    assert held_by(name) == {}
