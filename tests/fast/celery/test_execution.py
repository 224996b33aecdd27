"""The lock and the queue lock of a task while a worker executes it, and at its end."""

import functools
from contextlib import suppress
from contextvars import copy_context

import pytest
from celery import Task, chain, group
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_failure, task_revoked, task_success
from kombu.exceptions import OperationalError

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.celery.message import AGAIN, CONFLICTS, DUPLICATE, QUEUE_LOCK
from django_redislock.tasks.single import queue_lock_token
from tests.lock_tools import listening, start
from tests.tools import wait_until

from .tools import (
    WHEN_SENT,
    Unsendable,
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


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_message_without_a_queue_lock_is_skipped_if_another_has_it(app, name, signals, mode):
    task = make_task(app, name, mode)
    first = task.delay()
    assert task.apply(task_id="second").get() is None
    assert signals == [("skipped", "second", first.id)]
    assert queue_lock(name, mode).holder.task_id == first.id


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


def test_headers_take_no_lock_from_another_task(app, name):
    task = make_task(app, name)
    result = task.delay()
    other = make_task(app, f"{name}:other")
    assert run_message(app, other, headers={QUEUE_LOCK: name}) == "ran"
    assert held_by(name) == {name: result.id}


def test_a_queue_lock_in_the_headers_of_while_executing_is_ignored(app, name, sent, signals):
    @app.task(name=f"tests.{name}")
    @single_instance(key=name)
    def work(): ...

    with locks.lock(name):
        assert run_message(app, work, headers={QUEUE_LOCK: "another"}) is None
    assert signals == [("skipped", "own", None)]
    assert not sent


# at_least_for


def test_at_least_for_counts_from_the_start_in_until_executing(eager, name):
    task = make_task(eager, name, "until_executing", at_least_for=60)
    assert task.delay().get() == "ran"
    info = locks.get(name)
    assert (info.state, 50 < info.ttl <= 60) == ("cooldown", True)
    assert task.delay().get() is None


def test_a_cooldown_does_not_block_the_queue_lock_of_until_and_while_executing(eager, name):
    def body():
        return [*state_of(name), task.queue_lock_is_free()]

    task = make_task(eager, name, "until_and_while_executing", at_least_for=60, body=body)
    task.queue_lock_is_free = lambda: locks.get(f"{name}:queued") is None
    assert task.delay().get()[1:] == [None, True]
    assert locks.get(name).state == "cooldown"


# Messages that end without running


def test_a_failure_before_the_body_releases_the_queue_lock(app, name):
    mode = "until_and_while_executing"
    task = make_task(app, name, mode)
    result = task.delay()
    task_failure.send(
        sender=app.tasks[task.name],
        task_id=result.id,
        exception=LookupError(),
        args=(),
        kwargs={},
        traceback=None,
        einfo=None,
    )
    assert queue_lock(name, mode) is None


def test_a_revoked_message_releases_its_queue_lock_and_no_other(app, name):
    task = make_task(app, name, at_least_for=60)  # there is no cooldown if it did not begin
    result = task.delay()
    revoke(app, task, "another")
    assert locks.get(name).holder.task_id == result.id
    revoke(app, task, result.id)
    assert locks.get(name) is None


class Closed(Task):
    def __call__(self, *args, **kwargs):
        return "closed"


class ClosedBefore(Task):
    error = Ignore("closed")

    def before_start(self, *args):
        raise self.error


class Requeued(ClosedBefore):
    acks_late, error = True, Reject("later", requeue=True)


@pytest.mark.parametrize(
    ("base", "mode", "kept"),
    [
        (Closed, "until_executing", False),
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
        run_message(app, task, headers={QUEUE_LOCK: name})
    assert held_by(name) == {}


# Retries


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_requeued_message_keeps_the_lock_if_it_was_not_acknowledged(app, name, acks_late):
    def requeue():
        raise Reject("later", requeue=True)

    task = make_task(app, name, body=requeue, task={"acks_late": acks_late})
    task.apply(task_id="own", headers={QUEUE_LOCK: name})
    assert held_by(name) == ({name: "own"} if acks_late else {})
    if acks_late:
        assert locks.get(name).ttl > 3000


def test_a_task_that_retries_itself_keeps_its_lock(eager, name):
    seen = []

    def body():
        seen.append(locks.get(name).fence_token)
        if len(seen) < 3:
            raise task.retry(countdown=0)
        return "ran"

    task = make_task(eager, name, body=body)
    assert task.delay().get() == "ran"
    assert seen == sorted(set(seen))
    assert len(seen) == 3
    assert locks.get(name) is None


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
def test_a_task_that_sends_itself_again_and_fails_keeps_its_lock(app, name, error):
    def body():
        task.retry(countdown=100, throw=False)
        raise error

    task = make_task(app, name, body=body)
    run_message(app, task)
    assert 3690 < locks.get(name).ttl <= 3700
    locks.force_release(name)


def test_a_retry_that_expires_keeps_its_lock_no_longer(app, name):
    def body():
        raise task.retry(countdown=10, expires=20)

    task = make_task(app, name, body=body)
    run_message(app, task)
    assert 10 < locks.get(name).ttl <= 20
    locks.force_release(name)


def test_a_task_that_could_not_send_itself_again_keeps_no_lock(app, name):
    def body():
        with suppress(Reject):
            task.retry(kwargs={"no": object()}, throw=False)
        return "ran"

    task = make_task(app, name, body=body)
    assert run_message(app, task) == "ran"
    assert held_by(name) == {}


def test_a_task_with_a_limit_that_sent_itself_again_and_returns_keeps_no_lock(app, name, sent):
    def body():
        if not sent:
            task.retry(countdown=0, throw=False)
            assert run_message(app, task, headers={QUEUE_LOCK: sent[0][QUEUE_LOCK]}) == "ran"
        return "ran"

    task = make_task(app, name, limit=2, body=body)
    assert run_message(app, task) == "ran"
    assert held_by(name) == {}


def test_an_eager_retry_that_is_raised_to_the_caller_keeps_no_lock(eager, name):
    def retry():
        raise task.retry(countdown=100)

    eager.conf.task_eager_propagates = True
    task = make_task(eager, name, body=retry)
    for call in (task.apply, task.apply_async):
        with pytest.raises(Retry):
            call()
        assert held_by(name) == {}


@pytest.mark.parametrize("below", [True, False])
def test_a_retry_that_cannot_be_sent_keeps_no_lock(app, name, below):
    def fail():
        raise LookupError

    mode = {"hold_on_retry": True} if below else {"mode": "until_executed"}
    decorate = single_instance(key=name, **mode)
    make = app.task(base=Unsendable, autoretry_for=(LookupError,), name=f"tests.{name}")
    task = make(decorate(fail)) if below else decorate(make(fail))
    run_message(app, task)
    assert locks.get(name) is None


class Passing(Task):
    """A task whose class calls it with a copy of the request, as `Task.__call__` does since
    Celery 5.5."""

    def __call__(self, *args, **kwargs):
        self.push_request(**vars(self.request) | {"args": args, "kwargs": kwargs})
        try:
            return self.run(*args, **kwargs)
        finally:
            self.pop_request()


@pytest.mark.parametrize("base", [Task, Passing])
@pytest.mark.parametrize("how", ["replace", "retry"])
def test_a_task_that_sends_itself_again_keeps_the_queue_lock(app, name, sent, how, base):
    def again(self, number):
        if how == "replace":
            raise self.replace(self.si(number + 1))
        self.retry(throw=False)

    task = app.task(bind=True, base=base, name=f"tests.{name}")(again)
    task = single_instance(mode="until_executed", key=name)(task)
    run_message(app, task, 1)
    [headers] = sent
    assert (headers["id"], headers[QUEUE_LOCK]) == ("own", name)
    assert locks.get(name).token == queue_lock_token("own")
    assert task.delay(1).id == "own"
    assert len(sent) == 1


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_task_that_replaces_another_with_the_same_key_takes_over_its_lock(app, name, sent, mode):
    def give_over(self):
        raise self.replace(second.si())

    first = app.task(bind=True, name=f"tests.first.{name}")(give_over)
    first = single_instance(mode="until_executed", key=name)(first)
    second = make_task(app, name, mode, body=lambda: state_of(name))
    run_message(app, first)
    [headers] = sent
    assert (headers["id"], headers["task"]) == ("own", second.name)
    assert set(held_by(name).values()) == {"own"}
    assert locks.get(name).token == queue_lock_token("own")
    held = None if mode == "until_executing" else "own"
    assert run_message(app, second, headers={QUEUE_LOCK: headers[QUEUE_LOCK]}) == (held, None)
    assert held_by(name) == {}


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


def queued_and_waiting(app, name, **options):
    """Two tasks with one lock: one of them is queued, the other waits."""

    def work():
        return "ran"

    queued = app.task(name=f"tests.queued.{name}")(work)
    queued = single_instance(mode="until_executed", key=name, **options)(queued)
    queued.apply_async(task_id="queued")
    waiting = single_instance(key=name, on_conflict="wait", **options)(work)
    return queued, app.task(name=f"tests.waiting.{name}")(waiting)


def test_a_task_is_sent_again_instead_of_waiting_for_a_queued_one(app, name, sent, signals):
    queued, waiting = queued_and_waiting(app, name)
    run_message(app, waiting)
    assert [each["id"] for each in sent] == ["queued", "own"]
    assert (outcomes(name, "own"), signals) == ([], [])
    assert run_message(app, queued, task_id="queued") == "ran"
    headers = {CONFLICTS: sent[1][CONFLICTS], AGAIN: sent[1][AGAIN]}
    assert run_message(app, waiting, headers=headers) == "ran"


def test_a_task_does_not_wait_for_a_queued_one_if_there_is_room(app, name, sent):
    _, waiting = queued_and_waiting(app, name, limit=2)
    assert run_message(app, waiting) == "ran"
    assert len(sent) == 1


def test_a_retry_after_a_conflict_keeps_the_headers_and_the_tasks_own_retries(app, name, sent):
    @app.task(name=f"tests.{name}", max_retries=0)
    @single_instance(key=name, on_conflict="retry", countdown=0.2)
    def work():
        return "ran"

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


@pytest.mark.parametrize(("acks_late", "error"), [(False, OperationalError), (True, Reject)])
def test_a_retry_after_a_conflict_that_cannot_be_sent(app, name, acks_late, error, caplog):
    @app.task(base=Unsendable, acks_late=acks_late, name=f"tests.{name}")
    @single_instance(key=name, on_conflict="retry")
    def work(): ...

    with locks.lock(name):
        assert run_message(app, work).type is error
    assert ("reject requeue=True" in caplog.text) is acks_late


# Redelivered messages

AGAIN_OR_REDELIVERED = pytest.mark.parametrize(
    "how", [{"redelivered": True}, {"headers": {AGAIN: True}}], ids=str
)


@pytest.fixture
def make_pair(app, name):
    """Return a function that makes a task with a limit of two."""

    def make(body, mode, **options):
        if mode in WHEN_SENT:
            return make_task(app, name, mode, body=body, limit=2, **options)
        return app.task(name=f"tests.{name}")(single_instance(key=name, limit=2, **options)(body))

    return make


@AGAIN_OR_REDELIVERED
@pytest.mark.parametrize("mode", WITH_A_LOCK)
def test_a_message_does_not_run_twice_at_once(app, name, make_pair, sent, mode, how):
    def body():
        ran.append(1)
        elsewhere(lambda: run_message(app, task, **how))
        return "ran"

    ran = []
    task = make_pair(body, mode)
    assert run_message(app, task) == "ran"
    assert ran == [1]
    assert [(each["id"], each[AGAIN]) for each in sent] == [("own", True)]
    assert outcomes(name, "own") == ["released"]


@AGAIN_OR_REDELIVERED
def test_a_redelivered_message_does_not_wait_for_its_first_delivery(app, name, sent, how):
    def body():
        ran.append(1)
        if len(ran) == 1:
            seconds.append(start(lambda: run_message(app, task, **how)))
            wait_until(lambda: sent or locks.get(name).waiters)
        return "ran"

    ran, seconds = [], []
    work = single_instance(key=name, on_conflict="wait")(body)
    task = app.task(name=f"tests.{name}", acks_late=True)(work)
    assert run_message(app, task) == "ran"
    seconds[0].result(60)
    assert ran == [1]
    assert outcomes(name, "own") == ["released"]
    assert [(each["id"], each[AGAIN]) for each in sent] == [("own", True)]


def test_a_redelivered_message_that_was_acknowledged_had_not_begun(app, name, signals):
    """A worker that shuts down gives back the messages that it has only fetched."""

    @app.task(name=f"tests.{name}")
    @single_instance(key=name, at_least_for=60)
    def work():
        return "ran"

    app.backend.store_result("own", "ran", "SUCCESS")  # of an earlier message with that id
    assert run_message(app, work, redelivered=True) == "ran"
    assert run_message(app, work, redelivered=True, task_id="duplicate") is None
    assert [each[:2] for each in signals] == [("skipped", "duplicate")]


@pytest.mark.parametrize("mode", WITH_A_LOCK)
def test_a_redelivered_message_does_not_wait_for_its_own_cooldown(app, name, make_pair, mode):
    def body():
        return "ran"

    task = make_pair(body, mode, at_least_for=60)
    if mode in WHEN_SENT:
        task.apply_async(task_id="own")
    for _ in range(2):
        assert run_message(app, task, headers={AGAIN: True}) == "ran"
        app.backend.forget("own")
    assert [each.timeout for each in locks.get(name).holders] == [0, 0]


# A direct call from inside the body


class Direct(Task):
    """A task whose class calls the body itself."""

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


@pytest.mark.parametrize(
    ("base", "options"),
    [
        (Task, {"mode": "until_executing"}),
        (Task, {"mode": "until_executed"}),
        (Task, {"mode": "until_and_while_executing"}),
        (Task, {"on_conflict": "skip"}),
        (Task, {"on_conflict": "retry"}),
        (Direct, {"mode": "until_executed"}),
        (Direct, {"on_conflict": "retry"}),
    ],
    ids=str,
)
def test_a_direct_call_with_other_arguments_is_not_the_message(app, name, sent, options, base):
    def work(number):
        ran.append(number)
        with suppress(AlreadyRunning):
            return number, task(number + 1)
        return number, "refused"

    ran = []
    make = app.task(base=base, acks_late=True, name=f"tests.{name}")
    decorate = single_instance(key=f"{name}:{{number}}", **options)
    task = decorate(make(work)) if "mode" in options else make(decorate(work))
    with locks.lock(f"{name}:2"):
        result = run_message(app, task, 1, headers={QUEUE_LOCK: f"{name}:1", AGAIN: True})
    assert result == (1, "refused" if options.get("on_conflict") == "retry" else None)
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


@pytest.fixture
def make_paging(app, name):
    """Return a function that makes a task with a lock for each page, which sends the next page."""

    def make(body, **options):
        of_app = app.task(bind=True, name=f"tests.{name}", autoretry_for=(LookupError,))
        decorate = single_instance(key=lambda pages: f"{name}:{pages[0]}", **options)
        return of_app(decorate(body)) if options.get("mode") is None else decorate(of_app(body))

    return make


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("body", [by_retry, by_replace, by_a_change, by_an_error])
def test_a_task_that_goes_on_with_other_arguments_takes_their_queue_lock_or_runs_later(
    make_paging, app, name, sent, body, is_taken
):
    task = make_paging(body, mode="until_executed")
    others = [task.delay([2]).id] if is_taken else []
    run_message(app, task, [1, 2])
    assert held_by(name) == {f"{name}:2": others[0] if is_taken else "own"}
    assert (sent[-1]["id"], sent[-1][QUEUE_LOCK]) == ("own", f"{name}:2")
    assert task.delay([1, 2]).id != "own"
    if is_taken:
        run_message(app, task, [2], headers={QUEUE_LOCK: sent[1][QUEUE_LOCK]})
        assert sent[-1]["id"] == "own"


@pytest.mark.parametrize("body", [by_retry, by_a_change, by_an_error])
def test_hold_on_retry_keeps_no_lock_for_other_arguments(make_paging, app, name, body):
    task = make_paging(body, hold_on_retry=True)
    run_message(app, task, [1, 2])
    assert held_by(name) == {}


@pytest.mark.parametrize(("retried_with", "kept"), [(None, True), ((2,), False), ((1,), True)])
def test_hold_on_retry_keeps_the_lock_if_a_decorator_changes_the_arguments(
    app, name, retried_with, kept
):
    @single_instance(key=f"{name}:{{account[number]}}", hold_on_retry=True)
    def work(self, account):
        raise self.retry(args=retried_with, countdown=0)

    def looked_up(self, number):
        return work(self, {"number": number})

    looked_up.__wrapped__ = work
    run_message(app, app.task(bind=True, name=f"tests.{name}")(looked_up), 1)
    assert held_by(name) == ({f"{name}:1": "own"} if kept else {})


@pytest.mark.parametrize("options", [{"mode": "until_executed"}, {"hold_on_retry": True}])
def test_an_eager_task_keeps_no_lock_for_other_arguments(make_paging, eager, name, options):
    def body(self, pages):
        return pages if len(pages) == 1 else by_retry(self, pages)

    assert make_paging(body, **options).delay([1, 2, 3]).get() == [3]
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


@pytest.mark.parametrize("by", ["header", "arguments"])
def test_an_argument_that_the_class_adds_does_not_change_the_lock(app, name, sent, by):
    def work(self, number):
        raise self.retry(countdown=0)

    task = app.task(base=WithUser, bind=True, name=f"tests.{name}")(work)
    task = single_instance(mode="until_executed", key=f"{name}:{{number}}")(task)
    run_message(app, task, 1, kwargs={"_user": 7})
    assert held_by(name) == {f"{name}:1": "own"}
    assert sent[0][QUEUE_LOCK] == f"{name}:1"
    args, headers = ((1,), None) if by == "arguments" else ((2,), {QUEUE_LOCK: f"{name}:1"})
    revoke(app, task, args=args, kwargs={"_user": 7}, headers=headers)
    assert held_by(name) == {}


# Headers that hide others: software that traces tasks adds a header with the name "headers"


@pytest.mark.parametrize("traced", [False, True])
def test_a_duplicate_that_was_sent_completes_without_running(app, name, signals, traced):
    task = make_task(app, name, body=lambda: pytest.fail("it ran"))
    assert run_message(app, task, headers={DUPLICATE: "first"}, traced=traced) is None
    assert signals == [("skipped", "own", "first")]


def test_the_header_of_a_duplicate_is_ignored_by_a_task_without_a_queue_lock(app, name):
    @app.task(name=f"tests.{name}")
    @single_instance(key=name, on_conflict="retry")
    def work():
        return "ran"

    with locks.lock(name):
        assert run_message(app, work, headers={DUPLICATE: "first"}).type is Retry
    assert run_message(app, work, headers={DUPLICATE: "first"}) == "ran"


def test_a_traced_task_is_retried_no_more_often_than_max_retries(app, name, sent):
    @app.task(name=f"tests.{name}")
    @single_instance(key=name, on_conflict="retry", max_retries=1)
    def work(): ...

    with locks.lock(name):
        assert run_message(app, work, traced=True).type is Retry
        [headers] = sent
        met_again = {CONFLICTS: headers[CONFLICTS]}
        assert run_message(app, work, headers=met_again, traced=True).type is AlreadyRunning
    assert (headers["trace"], len(sent)) == ("1", 1)


def test_a_traced_message_that_is_revoked_releases_its_queue_lock(app, name):
    def work(page): ...

    made = app.task(name=f"tests.{name}")(work)
    task = single_instance(mode="until_executed", key=lambda page: f"{name}:{page}")(made)
    task.apply_async((1,), task_id="own")
    revoke(app, task, args=(2,), **{QUEUE_LOCK: f"{name}:1", "headers": {"trace": "1"}})
    assert held_by(name) == {}


@pytest.mark.parametrize("traced", [False, True])
def test_a_retry_that_is_revoked_releases_the_lock(app, name, traced):
    @app.task(bind=True, name=f"tests.{name}")
    @single_instance(key=f"{name}:{{page}}", hold_on_retry=True)
    def work(self, page):
        raise self.retry(countdown=100)

    task = app.tasks[work.name]
    if traced:
        run = task.run
        task.run = functools.wraps(run)(lambda *args, **kwargs: run(*args, **kwargs))
    assert run_message(app, task, 1).type is Retry
    assert held_by(name) == {f"{name}:1": "own"}
    revoke(app, task, args=(1,))
    assert held_by(name) == {}


def test_a_call_of_another_task_in_a_receiver_is_not_for_the_message(app, name):
    @single_instance(key=name)
    def function():
        return "ran"

    @app.task(name=f"tests.other.{name}")
    def other():
        return function()

    task = app.task(name=f"tests.{name}", acks_late=True)(function)
    results = []

    def call_other(sender, **_):
        if sender.name == task.name:
            results.append(other.apply().result)

    with listening(task_success, call_other):
        run_message(app, task, redelivered=True)
    assert results == ["ran"]


def test_a_thread_that_outlives_the_message_does_not_act_for_it(app, name):
    contexts, ids = [], []

    @single_instance(key=name)
    def function():
        contexts.append(copy_context())
        ids.append(locks.get(name).holder.task_id)

    task = app.task(name=f"tests.{name}")(function)
    run_message(app, task)
    elsewhere(lambda: contexts[0].run(task.run))
    assert ids == ["own", None]
