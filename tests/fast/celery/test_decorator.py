"""`single_instance` in this process: where it can be placed, its options, and conflicts."""

import inspect
import logging
import os
import socket
import threading
from datetime import timedelta

import celery._state
import pytest
from celery import Celery, Task, shared_task
from django.core.exceptions import ImproperlyConfigured

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import task_skipped
from django_redislock.tasks.policies import back_off
from django_redislock.testing import EmbeddedServer
from tests.lock_tools import listening, start, waiting

from .tools import decorated, held_by, logged, run_message

NAME = "tests:place"


@pytest.fixture
def held(hold):
    hold(NAME, timeout=5)


class TestBelow:
    """Below the task decorator, or on a plain function."""

    def test_the_signature_and_the_docstring_stay(self):
        def double(number: int, *, plus: int = 0) -> int:
            """Double it."""

        decorated = single_instance(unique_on="*")(double)
        assert inspect.signature(decorated) == inspect.signature(double)
        assert (decorated.__name__, decorated.__doc__) == ("double", "Double it.")
        assert decorated.__wrapped__ is double

    def test_generators_and_what_is_no_function_are_refused(self):
        def generator():
            yield

        with pytest.raises(TypeError, match="the generator function"):
            single_instance(generator)
        with pytest.raises(TypeError, match="returned a generator"):
            single_instance(lambda: generator())()
        assert locks.count() == 0
        with pytest.raises(TypeError, match="decorates a function, not"):
            single_instance("name")

    def test_methods_and_task_classes_run(self, app):
        class Shop:
            pk = 4

            @single_instance(key="shop:{self.pk}")
            def sell(self):
                return current_lock().name

        class Sync(Task):
            name = "shop.sync"

            @single_instance(unique_on="*")
            def run(self, account_id):
                return current_lock().name

        assert Shop().sell() == "shop:4"
        task = app.register_task(Sync())
        assert task.apply((7,)).get() == "shop.sync:account_id=7"


REFUSED = [
    ({"mode": "until_executed"}, TypeError, "mode='until_executed' .* goes above the task"),
    ({"mode": "until_done"}, ValueError, "mode='until_done' is not one of 'while_exec"),
    ({"mode": "until_executed", "on_conflict": "wait"}, ValueError, "Use one of 'skip'"),
    ({"mode": "until_executing", "hold_on_retry": True}, ValueError, "hold_on_retry=True requi"),
    ({"hold_on_retry": 1}, TypeError, "hold_on_retry must be .*1"),
    ({"on_conflict": "ignore"}, ValueError, "on_conflict='ignore' .*'skip', 'raise', 'retry', "),
    ({"on_conflict": "replace"}, ValueError, "='replace' does not work with mode='while_ex"),
    ({"unique_on": ["a"], "key": "x"}, ValueError, "key='x' requires no unique_on"),
    ({"unique_on": "account_id"}, ValueError, "unique_on must be a list .*'account_id'"),
    ({"key": ""}, ValueError, "key must not be empty"),
    ({"key": "{b}"}, ImproperlyConfigured, r"key='\{b\}'.*account_id"),
    ({"blocking_timeout": 5}, ValueError, "blocking_timeout=5.0 requires on_conflict='wait'"),
    ({"countdown": 5}, ValueError, "countdown=5.0 requires on_conflict='retry'"),
    ({"max_retries": 5, "on_conflict": "wait"}, ValueError, "=5 .*'retry', not .*'wait"),
    ({"max_retries": -1, "on_conflict": "retry"}, ValueError, "max_retries .*-1"),
    ({"mode": "while_executing", "on_conflict": "queue"}, ValueError, "does not work with mode"),
    ({"max_queued": 3}, ValueError, "max_queued=3 requires on_conflict='queue'"),
    ({"mode": "until_executed", "on_conflict": "queue", "max_queued": 0}, ValueError, "max_q"),
    ({"limit": 0}, ValueError, "limit .*got 0"),
    ({"timeout": 0}, ValueError, "timeout .*got 0"),
    ({"on_lost": "tell"}, ValueError, "on_lost must be a callable or 'abort', got 'tell'"),
    ({"using": "nowhere"}, ValueError, "'nowhere' is not a cache alias.* CACHES has: 'default'"),
]


class TestOptions:
    @pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=str)
    def test_options_that_cannot_work_are_refused_at_import(self, options, error, text):
        with pytest.raises(error, match=text):

            @single_instance(**options)
            def sync(account_id): ...

    def test_max_hold_ends_the_lock_of_a_task_that_runs_too_long(self, moving_clock):
        lost = []

        @single_instance(key=NAME, timeout=timedelta(seconds=30), max_hold=50, on_lost=lost.append)
        def work():
            assert locks.get(NAME).timeout == 30
            moving_clock.forward(29)
            assert not current_lock().lost
            moving_clock.forward(22)
            assert current_lock().lost

        work()
        assert len(lost) == 1
        assert locks.get(NAME) is None


class TestAbove:
    """Above the task decorator, in the modes with a queue lock."""

    @pytest.fixture
    def make_app(self):
        """Return a function that makes an app, and restore the shared tasks of the process."""
        before = set(celery._state._on_app_finalizers)
        apps = []

        def make():
            apps.append(Celery(f"tests.{len(apps)}", broker="memory://", set_as_current=False))
            return apps[-1]

        yield make
        for each in apps:
            each.close()
        celery._state._on_app_finalizers.intersection_update(before)

    def test_a_shared_task_is_a_single_instance_in_each_app(self, make_app, name):
        early = make_app()
        early.finalize()

        @single_instance(mode="until_executed", key=name)
        @shared_task(name=f"tests.shared.{name}")
        def work():
            return current_lock().name

        for app in (early, make_app()):
            app.conf.task_always_eager = True
            assert app.tasks[f"tests.shared.{name}"].delay().get() == name

    @pytest.mark.parametrize("options", [{"mode": "until_executed"}, {}])
    def test_the_class_and_the_signature_of_the_task_do_not_change(self, app, options):
        def work(self, account_id, full=False): ...

        plain = app.task(bind=True, name="tests.plain")(work)
        make = app.task(bind=True, name="tests.single")
        task = decorated(make, work, unique_on=["account_id"], **options)
        assert type(task).__mro__[1:] == type(plain).__mro__[1:]
        for args in [(), (1, 2, 3)]:
            with pytest.raises(TypeError):
                task.delay(*args)

    def test_a_task_that_locks_only_while_it_runs_is_sent_as_often_as_wanted(
        self, app, name, skipped
    ):
        @single_instance(key=f"{name}:{{account_id}}")
        @app.task(bind=True, name=f"tests.{name}", autoretry_for=(KeyError,))
        def work(self, account_id):
            assert self.name == f"tests.{name}"
            return current_lock().name

        assert work.delay(7).id != work.delay(7).id
        assert held_by(name) == {}
        assert run_message(app, work, 7) == f"{name}:7"
        with locks.lock(f"{name}:7"):
            assert start(lambda: run_message(app, work, 7)).result(60) is None
        assert [facts["args"] for facts in skipped] == [(7,)]

    def test_a_task_with_wrong_options_does_not_run(self, app, name):
        def work(account_id): ...

        wrong = single_instance(mode="until_executed", unique_on=["b"])
        wrong(app.task(name=name)(work))
        refused = pytest.raises(ImproperlyConfigured, match=r"'b'.*account_id")
        with refused:
            app.finalize()
        for use in ("delay", "__call__"):
            with refused:
                getattr(app.tasks[name], use)(1)


class TestConflict:
    def test_skip_returns_none_with_one_warning_and_a_signal(self, held, skipped, caplog):
        def fail(**facts):
            raise RuntimeError("receiver")

        @single_instance(key=NAME)
        def work(number, *, fast):
            raise AssertionError("it ran")

        with listening(task_skipped, fail):
            assert work(1, fast=True) is None
        [record] = logged(caplog, "Call skipped: task=", repr(NAME))
        assert (record.name, record.levelno) == ("django_redislock", logging.WARNING)
        [facts] = skipped
        assert (facts["sender"], facts["name"]) == (work, NAME)
        assert (facts["task_id"], facts["holder_task_id"]) == (None, None)
        assert (facts["args"], facts["kwargs"]) == ((1,), {"fast": True})

    def test_raise_says_who_holds(self, held):
        with pytest.raises(AlreadyRunning) as caught:
            single_instance(key=NAME, on_conflict="raise")(lambda: 1)()
        assert (caught.value.name, caught.value.task_id) == (NAME, None)
        assert 0 < caught.value.expires_in <= 5
        assert caught.value.held_by.startswith(f"{socket.gethostname()}:{os.getpid()}")

    def test_a_cooldown_is_named_in_the_error(self):
        single_instance(key=NAME, at_least_for=60)(lambda: 1)()
        refused = single_instance(key=NAME, on_conflict="raise")(lambda: 1)
        with pytest.raises(AlreadyRunning, match=rf"^Lock {NAME!r} is in cooldown for ") as caught:
            refused()
        assert locks.force_release(NAME)
        assert caught.value.in_cooldown
        assert 50 < caught.value.expires_in <= 60

    def test_wait_blocks_until_the_lock_is_free_or_gives_up(self):
        begun, go = threading.Event(), threading.Event()
        order = []

        @single_instance(key=NAME, on_conflict="wait", blocking_timeout=60)
        def work(who):
            begun.set()
            go.wait(60)
            order.append(who)

        first = start(work, "first")
        assert begun.wait(60)
        for seconds in (0, 0.05):
            hasty = single_instance(key=NAME, on_conflict="wait", blocking_timeout=seconds)
            with pytest.raises(AlreadyRunning):
                hasty(lambda: 1)()
        second = start(work, "second")
        waiting(locks, NAME, 1)
        go.set()
        first.result(60)
        second.result(60)
        assert order == ["first", "second"]

    def test_retry_where_there_is_no_queue_raises_at_once(self, app, held):
        @app.task
        @single_instance(key=NAME, on_conflict="retry")
        def work(): ...

        app.conf.task_always_eager = True
        for call in (work, work.apply, work.delay):
            with pytest.raises(AlreadyRunning):
                call().get()

    def test_a_call_from_inside_itself_does_not_wait(self, app):
        @app.task
        @single_instance(key=NAME, on_conflict="wait")
        def work(depth):
            return work(depth + 1)

        with pytest.raises(AlreadyRunning):
            work.apply((0,)).get()

    def test_back_off_doubles_up_to_a_minute(self):
        for conflicts, longest in enumerate([1, 2, 4, 8, 16, 32, 60, 60]):
            waits = [back_off(conflicts) for _ in range(50)]
            assert max(1, longest / 2) <= min(waits) <= max(waits) <= longest


class TestEnd:
    """The lock is released, and an error of the lock does not hide the outcome."""

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_outcome_of_the_function_stands_if_the_lock_is_lost(self, fails, caplog):
        @single_instance(key=NAME)
        def work():
            locks.force_release(NAME)
            if fails:
                raise LookupError("body")
            return "done"

        if fails:
            with pytest.raises(LookupError, match="body"):
                work()
        else:
            assert work() == "done"
        record = logged(caplog, f"name={NAME!r}")[-1]
        assert (record.levelno, record.name) == (logging.ERROR, "django_redislock")

    def test_the_outcome_stands_if_the_server_becomes_unreachable(self, alias_on, caplog):
        with EmbeddedServer() as server:
            alias_on(server.url)

            @single_instance(key=NAME, using="own")
            def work():
                server.stop()
                return "done"

            assert work() == "done"
        record = logged(caplog, f"name={NAME!r} error=")[-1]
        assert (record.levelno, record.name) == (logging.WARNING, "django_redislock")
