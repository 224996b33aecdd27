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
    WHEN_SENT,
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


def revoke(app, task, task_id="own", *, args=(), kwargs=None, **more):
    """Have a worker drop a revoked message."""
    request = Context(id=task_id, args=args, kwargs=kwargs or {}, **more)
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


@pytest.mark.parametrize("mode", ["until_executing", "until_executed"])
@pytest.mark.parametrize("track_started", [False, True])
def test_a_replaced_task_does_not_run_after_the_newer_one(app, name, track_started, mode):
    ran, options = [], {"track_started": track_started}  # that is stored over "REVOKED"
    body = functools.partial(ran.append, 1)
    task = make_task(app, name, mode, on_conflict="replace", body=body, task=options)
    first, second = task.delay(), task.delay()
    assert first.state == "REVOKED"
    for each in second, first:
        run_message(app, task, headers={QUEUE_LOCK: name}, task_id=each.id)
    assert ran == [1]
    assert app.AsyncResult(first.id).state == "REVOKED"  # as `first` caches its state
    assert held_by(name) == {}


# at_least_for


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
def test_at_least_for_counts_from_the_start_and_blocks_no_separate_queue_lock(eager, name, mode):
    task = make_task(eager, name, mode, at_least_for=60)
    assert task.delay().get() == "ran"
    info = locks.get(name)
    assert (info.state, 50 < info.ttl <= 60) == ("cooldown", True)
    assert locks.get(f"{name}:queued") is None
    assert task.delay().get() is None


# Messages that end without running


@pytest.mark.parametrize("traced", [False, True])
def test_a_revoked_message_releases_its_queue_lock_and_no_other(app, name, traced):
    task = make_task(app, name, at_least_for=60)  # there is no cooldown if it did not begin
    result = task.delay()
    revoke(app, task, "another")
    assert locks.get(name).holder.task_id == result.id
    more = {QUEUE_LOCK: name, "headers": {"trace": "1"}} if traced else {}
    revoke(app, task, result.id, **more)
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


def test_a_task_that_cannot_begin_without_the_result_backend_releases_its_queue_lock(
    app, name, monkeypatch
):
    def store(*args, **options):
        raise OSError("away")

    options = {"track_started": True}
    task = make_task(app, name, task=options, body=lambda: pytest.fail("it ran"))
    task.apply_async(task_id="own")
    monkeypatch.setattr(app.backend, "store_result", store)
    with suppress(OSError), pytest.warns(RuntimeWarning, match="away"):
        run_message(app, task, headers={QUEUE_LOCK: name})  # it fails before its body
    assert held_by(name) == {}


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


@pytest.mark.parametrize("error", [Retry(), LookupError()])
def test_a_task_that_sends_itself_again_and_fails_keeps_its_lock_until_it_expires(
    app, name, error
):
    def body():
        task.retry(countdown=10, expires=20, throw=False)
        raise error

    task = make_task(app, name, body=body)
    run_message(app, task)
    assert 10 < locks.get(name).ttl <= 20


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
    with locks.lock(name):  # not every broker can send a larger number
        assert run_message(app, work, headers={CONFLICTS: 10**5000}).type is Retry
    assert sent[1][CONFLICTS] == 1_000_001


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


@pytest.mark.parametrize("mode", WITH_A_LOCK)
def test_a_redelivered_message_does_not_wait_for_its_own_cooldown(app, name, mode):
    task = make_task(app, name, mode, limit=2, at_least_for=60)
    if mode in WHEN_SENT:
        task.apply_async(task_id="own")
    for _ in range(2):
        assert run_message(app, task, headers={AGAIN: True}) == "ran"
        app.backend.forget("own")
    assert [each.timeout for each in locks.get(name).holders] == [0, 0]


# A direct call from inside the body


@pytest.mark.parametrize(
    "options", [*({"mode": mode} for mode in WHEN_SENT), {"on_conflict": "retry"}], ids=str
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


def by_a_change(self, pages):
    pages.pop(0)
    raise self.retry(countdown=0)


def by_an_error(self, pages):
    pages.pop(0)
    raise LookupError


def make_paging(app, name, body, **options):
    """Return a task with a lock for each page, which sends the next page."""
    make = app.task(bind=True, name=f"tests.{name}", autoretry_for=(LookupError,))
    return decorated(make, body, key=lambda pages: f"{name}:{pages[0]}", **options)


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("body", [by_retry, by_replace, by_a_change, by_an_error])
def test_a_task_that_goes_on_with_other_arguments_takes_their_queue_lock_or_runs_later(
    app, name, sent, body, is_taken
):
    task = make_paging(app, name, body, mode="until_executed")
    others = [task.delay([2]).id] if is_taken else []
    run_message(app, task, [1, 2])
    assert held_by(name) == {f"{name}:2": others[0] if is_taken else "own"}
    assert (sent[-1]["id"], sent[-1][QUEUE_LOCK]) == ("own", f"{name}:2")
    assert task.delay([1, 2]).id != "own"
    if is_taken:
        run_message(app, task, [2], headers={QUEUE_LOCK: sent[1][QUEUE_LOCK]})
        assert sent[-1]["id"] == "own"


@pytest.mark.parametrize("body", [by_retry, by_a_change, by_an_error])
def test_hold_on_retry_keeps_no_lock_for_other_arguments(app, name, body):
    run_message(app, make_paging(app, name, body, hold_on_retry=True), [1, 2])
    assert held_by(name) == {}


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_queue_lock_with_another_name_than_the_lock_is_released_at_the_start(
    app, name, sent, mode
):
    def work(pages):
        return held_by(name)

    task = app.task(name=f"tests.{name}")(work)
    task = single_instance(mode=mode, key=f"{name}:{{pages}}")(task)
    task.apply_async(((1, 2),), task_id="own")
    taken = sent[0][QUEUE_LOCK]
    assert taken.startswith(f"{name}:(1, 2)")
    assert held_by(name) == {taken: "own"}
    running = run_message(app, task, [1, 2], headers={QUEUE_LOCK: taken})  # as they come from JSON
    assert running == ({} if mode == "until_executing" else {f"{name}:[1, 2]": "own"})
    assert held_by(name) == {}


class WithUser(Task):
    """A task whose class adds an argument to each message, which the body does not get."""

    typing = False

    def apply_async(self, args=None, kwargs=None, **options):
        return super().apply_async(args, {**(kwargs or {}), "_user": 7}, **options)

    def __call__(self, *args, _user=None, **kwargs):
        return self.run(*args, **kwargs)  # by Task.__call__ Celery 5.4 loses the message


@pytest.mark.parametrize("options", [{"hold_on_retry": True}, {"mode": "until_executed"}])
def test_an_argument_that_the_class_adds_does_not_change_the_lock_of_a_retry(app, name, options):
    def work(self, number):
        raise self.retry(countdown=0)

    make = app.task(base=WithUser, bind=True, name=f"tests.{name}")
    task = decorated(make, work, key=f"{name}:{{number}}", **options)
    run_message(app, task, 1, kwargs={"_user": 7})
    assert held_by(name) == {f"{name}:1": "own"}
    revoke(app, task, args=(1,), kwargs={"_user": 7})
    assert held_by(name) == {}
