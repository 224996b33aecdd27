"""Each row of the tables in docs/getting-started/coming-from has a test of this package."""

import asyncio
import io
import json
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import chord
from celery.contrib.django.task import DjangoTask
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import override_settings
from kombu.exceptions import OperationalError

from django_redislock import (
    AlreadyRunning,
    Lock,
    LockError,
    LockLost,
    LockNotOwnedError,
    checks,
    locks,
    single_instance,
)
from django_redislock.signals import task_skipped
from tests import celery_app as tasks
from tests.celery_worker import outcome
from tests.tools import ROOT, wait_until

from . import coming_from_app as theirs

pytestmark = [
    pytest.mark.celery,
    # Celery 5.4 with redis-py 8, in a chord.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

PAGES = ROOT / "docs" / "getting-started" / "coming-from"

NAME = "tests:coming-from"
"""The lock of functions that run in this process."""

DEAD_END = "redis://127.0.0.1:1/0"

FREE_WITHIN = 2.0
"""Seconds."""


def place(run):
    return f"place:{run.id}"


def is_free(name, *, timeout=60):
    wait_until(lambda: locks.get(name) is None, timeout=timeout)
    return True


@contextmanager
def runs(worker, run, task, *args, **options):
    """One that runs until the end of ``with``, and then has ended well."""
    result = worker.send(task, run.id, *args, **options)
    run.wait_for(f"begin {result.id}")
    yield result
    run.go()
    assert outcome(result) == "ran"


@contextmanager
def waits_in_queue(worker, run, task, *args):
    """One that waits in the queue when ``with`` begins, and has run when it has ended."""
    result = worker.send(task, run.id, *args, countdown=0.7)
    yield result
    run.go()
    assert outcome(result) == "ran"


@pytest.fixture
def first(worker, run):
    """A task that has the place and runs, until the end of the test."""
    with runs(worker, run, theirs.placed) as result:
        yield result
    assert is_free(place(run))


def same_place(worker, run, task, one, other):
    """Whether a message with the arguments `other` gets the result of that with `one`."""
    first = worker.send(task, *one, countdown=0.5)
    second = worker.send(task, *other, countdown=0.5)
    sent = {first.id: first, second.id: second}
    for task_id in sent:
        run.wait_for(f"begin {task_id}")
    for _ in sent:
        run.go()
    assert [outcome(result) for result in sent.values()] == ["ran"] * len(sent)
    return len(sent) == 1


def caches_with(**more):
    from django.conf import settings

    return {"default": settings.CACHES["default"] | more}


def second_gets_first(worker, run, first):
    second = worker.send(theirs.placed, run.id)
    assert second.id == first.id
    assert len(run.notes("begin")) == 1


def second_is_refused(worker, run):
    with runs(worker, run, theirs.refusing) as first, pytest.raises(AlreadyRunning) as caught:
        worker.send(theirs.refusing, run.id)
    assert (caught.value.name, caught.value.task_id) == (place(run), first.id)
    assert 0 < caught.value.expires_in <= 60


def lease_in_queue_and_lease_at_work(worker, run, task, name):
    with waits_in_queue(worker, run, task) as result:
        in_queue = locks.get(name).ttl
        run.wait_for(f"begin {result.id}")
        at_work = locks.get(name).ttl
    assert is_free(name)
    return in_queue, at_work


def send_into_dead_end(run):
    once = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    connection = theirs.app.connection_for_write(DEAD_END, transport_options=once)
    with connection, pytest.raises(OperationalError):
        theirs.placed.apply_async((run.id,), connection=connection, retry=False)
    assert locks.get(place(run)) is None


def keeps_its_place_while_it_retries(worker, run):
    result = worker.send(theirs.retries_itself, run.id)
    wait_until(lambda: result.state == "RETRY", interval=0.005)
    assert worker.send(theirs.retries_itself, run.id).id == result.id
    assert outcome(result) == "ran"
    assert len(run.notes("begin")) == 3
    assert is_free(place(run))


def at_another_alias(prefix):
    """Where the lock of a function is while it runs: at this alias, and at the default one."""

    caches = caches_with()
    caches["other"] = caches["default"] | {"KEY_PREFIX": prefix}
    with override_settings(CACHES=caches):

        @single_instance(key=NAME, using="other")
        def work():
            return locks.using("other").get(NAME) is not None, locks.get(NAME) is not None

        return work()


def elsewhere(call, **options):
    """What it answers in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, **options).result(60)


class TestFromCacheLock:
    def test_timeout(self):
        with locks.lock(NAME, timeout=0.3):
            first = locks.get(NAME).expires_at
            wait_until(lambda: locks.get(NAME).expires_at > first)

    def test_no_timeout(self):
        assert locks.lock(NAME).timeout == 30

    def test_blocking_and_blocking_timeout(self, hold):
        hold(NAME)
        assert not elsewhere(locks.lock(NAME, blocking=False).acquire)
        assert not elsewhere(locks.lock(NAME, blocking_timeout=0.05).acquire)

    def test_sleep(self):
        with pytest.raises(TypeError, match="sleep"):
            locks.lock(NAME, sleep=0.1)

    def test_version(self):
        with pytest.raises(TypeError, match="version"):
            locks.lock(NAME, version=2)

    def test_client(self, redis_server):
        assert isinstance(redis_server.lock(NAME, lock_class=Lock), Lock)
        with Lock(redis_server, NAME) as lock:
            assert lock.owned()

    def test_thread_local_false(self, redis_server):
        lock = Lock(redis_server, NAME, thread_local=False)
        assert lock.acquire()
        elsewhere(lock.release)
        assert not lock.locked()

    def test_errors(self, hold):
        hold(NAME)
        with pytest.raises(redis.exceptions.LockError), locks.lock(NAME, blocking=False):
            pass
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            locks.lock(NAME).release()

    def test_keys(self, hold):
        lock = hold(NAME)
        cache.set(NAME, 1)
        cache.delete(NAME)
        assert lock.owned()

    def test_clearing_the_cache(self):
        lock = locks.lock(NAME)
        assert lock.acquire()
        cache.clear()
        assert not lock.locked()
        with pytest.raises(LockLost):
            lock.release()
        ids = [each.id for each in checks.check_own_database(None)]
        assert ids == ["redislock.W003"]

    def test_async(self):
        async def use():
            async with locks.lock(NAME) as lock:
                return await lock.aowned()

        assert asyncio.run(use())

    def test_decorator(self):
        @locks.lock("invoice:{pk}")
        def pay(pk):
            return [info.name for info in locks.active()]

        assert pay(42) == ["invoice:42"]

    def test_fencing_token(self):
        with locks.lock(NAME) as lock:
            first = lock.fence_token
        with locks.lock(NAME) as lock:
            assert lock.fence_token > first


class TestFromPythonRedisLock:
    def test_expire_with_auto_renewal_true(self):
        with locks.lock(NAME, timeout=0.3):
            first = locks.get(NAME).expires_at
            wait_until(lambda: locks.get(NAME).expires_at > first)

    def test_expire_alone(self):
        assert locks.lock(NAME, timeout=0.05, auto_renewal=False).acquire()
        assert is_free(NAME)

    def test_no_expire(self):
        assert locks.lock(NAME).timeout == 30

    def test_id(self):
        lock = locks.lock(NAME)
        assert lock.acquire(token="mine")
        assert locks.get(NAME).token == "mine"
        lock.release()

    def test_blocking_false(self, hold):
        hold(NAME)
        with pytest.raises(LockError), locks.lock(NAME, blocking=False):
            pass

    def test_acquire_timeout_5(self, hold):
        hold(NAME)
        assert not elsewhere(locks.lock(NAME, timeout=0.05).acquire, blocking_timeout=0.1)

    def test_signal_expire(self):
        with pytest.raises(TypeError, match="signal_expire"):
            locks.lock(NAME, signal_expire=1000)

    def test_order(self, hold):
        lock, turns = hold(NAME), []

        def take_turn(number):
            with locks.lock(NAME):
                turns.append(number)

        with ThreadPoolExecutor(3) as pool:
            for number in range(3):
                pool.submit(take_turn, number)
                wait_until(lambda: locks.get(NAME).waiters > number)  # noqa: B023  at once
            lock.release()
        assert turns == [0, 1, 2]

    def test_acquire_of_what_is_held_already(self):
        with locks.lock(NAME) as lock, pytest.raises(LockError, match="already held by this"):
            lock.acquire()
        with locks.lock(NAME, reentrant=True) as lock, lock:
            pass
        assert locks.get(NAME) is None

    def test_release_of_what_is_not_held(self):
        with pytest.raises(LockNotOwnedError):
            locks.lock(NAME).release()

    def test_extend(self):
        with locks.lock(NAME, timeout=30) as lock:
            lock.extend(100, replace_ttl=True)
            assert locks.get(NAME).ttl > 90
            lock.reacquire()
            assert locks.get(NAME).ttl <= 30

    def test_locked(self, hold):
        assert not locks.lock(NAME).locked()
        hold(NAME)
        assert locks.lock(NAME).locked()

    def test_get_owner_id(self, hold):
        lock = hold(NAME)
        info = locks.get(NAME)
        assert (info.token, info.holder.pid) == (lock.token, os.getpid())

    def test_reset(self, hold):
        lock = hold(NAME)
        assert locks.force_release(NAME, "another's") == 0
        assert locks.force_release(NAME, lock.token) == 1

    def test_reset_all(self, hold):
        hold(NAME)
        call_command("locks", "release", "--all", "--yes", stdout=io.StringIO())
        assert locks.get(NAME) is None

    def test_redis_lock_django_cache(self):
        assert locks.using("django_redis").lock(NAME).acquire()
        assert locks.using("django_redis").force_release(NAME) == 1

    def test_locked_get_or_set(self):
        made = []

        @locks.lock("make:{key}")
        def value_of(key):
            return cache.get_or_set(key, lambda: made.append(key) or "made")

        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(value_of, ["tests:value"] * 8)] == ["made"] * 8
        assert made == ["tests:value"]
        cache.delete("tests:value")


class TestAllThree:
    def test_task_class(self):
        assert isinstance(theirs.placed, DjangoTask)
        assert callable(theirs.placed.delay_on_commit)

    @pytest.mark.parametrize("task", [theirs.placed, theirs.running], ids=["until", "while"])
    def test_owner_of_the_lock(self, worker, run, task, hold):
        with runs(worker, run, task):
            locks.force_release(place(run))
            lock = hold(place(run))
        wait_until(lambda: worker.logged("lost lock", run.id))
        assert lock.owned()

    def test_longer_than_the_timeout(self, worker, run):
        with runs(worker, run, theirs.short_lease):
            first = locks.get(place(run))
            late = first.expires_at + timedelta(seconds=2)
            wait_until(lambda: datetime.now(UTC) > late)
            assert locks.get(place(run)).fence_token == first.fence_token
        assert is_free(place(run))

    @pytest.mark.parametrize("task", [theirs.placed, theirs.running], ids=["until", "while"])
    def test_killed_child(self, worker, run, task):
        result = worker.send(task, run.id)
        run.wait_for("begin")
        worker.kill_child(locks.get(place(run)).holder.pid, result.id)
        assert is_free(place(run), timeout=FREE_WITHIN)
        assert type(outcome(result)).__name__ == "WorkerLostError"

    @pytest.mark.parametrize("task", [theirs.placed, theirs.running], ids=["until", "while"])
    def test_hard_time_limit(self, worker, run, task):
        result = worker.send(task, run.id, time_limit=1)
        assert type(outcome(result)).__name__ == "TimeLimitExceeded"
        assert is_free(place(run), timeout=FREE_WITHIN)

    def test_revoked_in_the_queue(self, worker, run):
        result = worker.send(theirs.placed, run.id, countdown=1)
        assert locks.get(place(run)) is not None
        result.revoke()
        wait_until(lambda: result.state == "REVOKED")
        assert is_free(place(run), timeout=FREE_WITHIN)
        assert not run.notes()

    def test_expired_in_the_queue(self, worker, run):
        result = worker.send(theirs.placed, run.id, countdown=1, expires=0.5)
        assert locks.get(place(run)) is not None
        wait_until(lambda: result.state == "REVOKED")
        assert is_free(place(run), timeout=FREE_WITHIN)
        theirs.placed.apply_async((run.id,), queue=f"nobody-{run.id}", expires=0.5)
        assert locks.get(place(run)) is not None
        assert is_free(place(run), timeout=FREE_WITHIN)
        assert not run.notes()

    @pytest.mark.parametrize("task", [theirs.ignored, theirs.rejected], ids=["ignore", "reject"])
    def test_ignore_and_reject(self, worker, run, task):
        worker.send(task, run.id)
        run.wait_for("begin")
        assert is_free(place(run), timeout=FREE_WITHIN)

    def test_duplicate_in_a_chord(self, worker, run, first):
        members = [theirs.placed.s(run.id), tasks.ready.s()]
        header = [member.set(queue=worker.queue) for member in members]
        result = chord(header)(tasks.collect.s().set(queue=worker.queue))
        skipped, pid = outcome(result)
        assert skipped is None
        assert isinstance(pid, int)

    def test_message_from_elsewhere(self, worker, run):
        with runs(worker, run, theirs.placed):
            held = locks.get(place(run))
            second = theirs.app.send_task(theirs.placed.name, (run.id,), queue=worker.queue)
            assert outcome(second) is None
            assert locks.get(place(run)).token == held.token
        assert is_free(place(run))
        third = theirs.app.send_task(theirs.placed.name, (run.id,), queue=worker.queue)
        run.wait_for(f"begin {third.id}")
        assert locks.get(place(run)).holder.task_id == third.id
        run.go()
        assert outcome(third) == "ran"
        assert is_free(place(run))

    def test_task_apply(self, run, first):
        held = locks.get(place(run))
        assert theirs.placed.apply((run.id,)).get() is None
        assert locks.get(place(run)).token == held.token

    def test_names_of_arguments(self, worker, run):
        with waits_in_queue(worker, run, theirs.by_all) as first:
            named = {"run": run.id, "full": False}
            second = theirs.by_all.apply_async(kwargs=named, queue=worker.queue)
            assert second.id == first.id

    def test_names_of_locks(self, worker, run):
        with runs(worker, run, theirs.by_run) as result:
            info = locks.get(f'tests.full.workers.coming_from_app.by_run:run="{run.id}"')
            assert info.holder.task_id == result.id
        assert is_free(info.name)

    def test_who_holds_what(self, run, first):
        out = io.StringIO()
        call_command("locks", "list", place(run), format="json", stdout=out)
        [listed] = json.loads(out.getvalue())
        assert listed["name"] == place(run)
        assert first.id in out.getvalue()

    def test_several_at_a_time(self, worker, run):
        few = [worker.send(tasks.few, run.id) for _ in range(2)]
        run.wait_for("begin", 2)
        assert outcome(worker.send(tasks.few, run.id)) is None
        run.go()
        run.go()
        assert [outcome(each) for each in few] == ["ran", "ran"]
        assert is_free(f"few:{run.id}")

    def test_newest_instead_of_first(self, worker, run):
        first = worker.send(theirs.replacing, run.id, countdown=1)
        with runs(worker, run, theirs.replacing) as second:
            assert locks.get(place(run)).holder.task_id == second.id
            wait_until(lambda: first.state == "REVOKED")
        assert is_free(place(run))
        assert run.notes("begin") == [f"begin {second.id}"]

    def test_one_running_and_one_queued(self, worker, run):
        with runs(worker, run, theirs.one_and_one) as first:
            second = worker.send(theirs.one_and_one, run.id)
            assert second.id != first.id
            assert worker.send(theirs.one_and_one, run.id).id == second.id
        run.wait_for(f"begin {second.id}")
        run.go()
        assert outcome(second) == "ran"
        assert is_free(place(run))
        assert is_free(f"{place(run)}:queued")


class TestFromCeleryOnce:
    def test_graceful_false(self, worker, run):
        second_is_refused(worker, run)

    def test_graceful_true(self, worker, run, first):
        second_gets_first(worker, run, first)

    def test_countdown_of_the_error(self, worker, run):
        second_is_refused(worker, run)

    def test_keys_with_names(self, worker, run):
        assert same_place(worker, run, theirs.by_run, (run.id, False), (run.id, True))

    def test_keys(self, worker, run):
        assert same_place(worker, run, theirs.by_task, (run.id,), ("another",))

    def test_no_keys(self, worker, run):
        assert same_place(worker, run, theirs.by_all, (run.id, False), (run.id, False))
        assert not same_place(worker, run, theirs.by_all, (run.id, False), (run.id, True))

    def test_1_and_1(self, worker, run):
        assert not same_place(worker, run, theirs.by_all, (run.id, 1), (run.id, "1"))

    def test_timeout_and_default_timeout(self, worker, run):
        leases = lease_in_queue_and_lease_at_work(worker, run, theirs.queued, place(run))
        assert 580 < leases[0] <= 601
        assert leases[1] <= 20
        name = f'tests.full.workers.coming_from_app.by_run:run="{run.id}"'
        leases = lease_in_queue_and_lease_at_work(worker, run, theirs.by_run, name)
        assert 3580 < leases[0] <= 3601
        assert leases[1] <= 30

    def test_once_given_to_apply_async(self, worker, run):
        with runs(worker, run, theirs.refusing), pytest.raises(AlreadyRunning):
            worker.send(theirs.refusing, run.id, once={"graceful": True})

    def test_unlock_before_run_true(self, worker, run):
        task = theirs.free_when_it_begins
        with waits_in_queue(worker, run, task) as first:
            assert worker.send(task, run.id).id == first.id
            run.wait_for(f"begin {first.id}")
            assert is_free(place(run))
            second = worker.send(task, run.id)
            run.wait_for(f"begin {second.id}")
            run.go()
        assert outcome(second) == "ran"

    def test_blocking_and_blocking_timeout(self, worker, run, hold):
        with pytest.raises(ValueError, match="on_conflict='wait'"):
            single_instance(mode="until_executed", on_conflict="wait")
        lock = hold(place(run))
        result = worker.send(theirs.waiting, run.id)
        wait_until(lambda: locks.get(place(run)).waiters == 1)
        lock.release()
        run.wait_for("begin")
        run.go()
        assert outcome(result) == "ran"
        assert is_free(place(run))

    def test_direct_call(self, run, first):
        assert theirs.rare(run.id) is None
        assert locks.get(place(run)).holder.task_id == first.id

    def test_retry_of_its_own(self, worker, run):
        keeps_its_place_while_it_retries(worker, run)

    def test_broker_away(self, run):
        send_into_dead_end(run)

    def test_url(self):
        assert at_another_alias("elsewhere") == (True, False)

    def test_file_backend(self, tmp_path):
        backend = "django.core.cache.backends.filebased.FileBasedCache"
        caches = caches_with(BACKEND=backend, LOCATION=str(tmp_path))
        with override_settings(CACHES=caches), pytest.raises(ImproperlyConfigured, match="File"):
            single_instance(key=NAME)(lambda: "ran")()

    def test_own_backend(self):
        with pytest.raises(TypeError, match="backend"):
            single_instance(backend="shop.locks.Backend")


class TestFromCelerySingleton:
    def test_raise_on_duplicate_false(self, worker, run, first):
        second_gets_first(worker, run, first)

    def test_raise_on_duplicate_true(self, worker, run):
        second_is_refused(worker, run)

    def test_unique_on_as_a_list(self, worker, run):
        assert same_place(worker, run, theirs.by_run, (run.id, False), (run.id, True))

    def test_unique_on_as_a_string(self):
        with pytest.raises(ValueError, match="unique_on must be a list"):
            single_instance(unique_on="run")

    def test_no_unique_on(self, worker, run):
        assert not same_place(worker, run, theirs.by_all, (run.id, False), (run.id, True))

    def test_lock_expiry(self, worker, run):
        in_queue, at_work = lease_in_queue_and_lease_at_work(
            worker, run, theirs.queued, place(run)
        )
        assert 580 < in_queue <= 601
        assert at_work <= 20

    def test_settings_for_all_tasks(self):
        @single_instance(key=NAME)
        def work():
            return locks.get(NAME).timeout

        with override_settings(REDISLOCK_TIMEOUT=7):
            assert work() == 7

    def test_singleton_key_prefix(self, redis_server):
        @single_instance(key=NAME)
        def work():
            return list(redis_server.scan_iter(f"*mine:*lock:{NAME}"))

        with override_settings(REDISLOCK_PREFIX="mine"):
            assert len(work()) == 1

    def test_singleton_backend_url_and_singleton_backend_kwargs(self):
        assert at_another_alias("elsewhere") == (True, False)

    def test_singleton_backend_class(self):
        with pytest.raises(TypeError, match="backend"):
            single_instance(backend="shop.locks.Backend")

    def test_clear_locks_app(self, hold):
        held = [hold(f"{NAME}:{number}") for number in range(3)]
        call_command("locks", "release", all=True, yes=True, stdout=io.StringIO())
        assert [locks.get(lock.name) for lock in held] == [None] * 3

    def test_release_lock_args_kwargs(self, worker, run):
        with waits_in_queue(worker, run, theirs.by_run):
            name = f'tests.full.workers.coming_from_app.by_run:run="{run.id}"'
            assert locks.force_release(name) == 1
            assert locks.get(name) is None
            run.wait_for("begin")
        assert is_free(name)

    def test_on_duplicate_overridden(self, worker, run, first):
        told = []

        def note(**skipped):
            told.append((skipped["name"], skipped["holder_task_id"], skipped["args"]))

        task_skipped.connect(note)
        try:
            worker.send(theirs.placed, run.id)
        finally:
            task_skipped.disconnect(note)
        [(name, holder, args)] = told
        assert (name, holder, list(args)) == (place(run), first.id, [run.id])

    def test_arguments_that_json_can_t_take(self, worker, run):
        value = uuid.uuid4()
        assert same_place(worker, run, theirs.by_all, (run.id, value), (run.id, value))

    def test_self_retry(self, worker, run):
        keeps_its_place_while_it_retries(worker, run)

    def test_broker_away(self, run):
        send_into_dead_end(run)


class TestFromCeleryHeimdall:
    def test_unique(self, worker, run):
        assert same_place(worker, run, theirs.by_all, (run.id, False), (run.id, False))
        assert not same_place(worker, run, theirs.by_all, (run.id, False), (run.id, True))

    def test_unique_timeout(self, worker, run):
        in_queue, at_work = lease_in_queue_and_lease_at_work(
            worker, run, theirs.queued, place(run)
        )
        assert 580 < in_queue <= 601
        assert at_work <= 20

    def test_key_as_a_string(self, worker, run):
        assert same_place(worker, run, theirs.nightly, (run.id,), ("another",))

    def test_key_as_a_callable(self, worker, run):
        assert same_place(worker, run, theirs.by_callable, (run.id, 1), (run.id, 2))
        assert not same_place(worker, run, theirs.by_callable, (run.id, 1), (run.id,))

    def test_unique_raises_false(self, worker, run, first):
        second_gets_first(worker, run, first)

    def test_unique_raises_true(self, worker, run):
        second_is_refused(worker, run)

    def test_unique_wait_for_expiry(self, worker, run):
        first = worker.send(theirs.rare, run.id)
        assert outcome(first) == "ran"
        wait_until(lambda: locks.get(place(run)).state == "cooldown", timeout=FREE_WITHIN)
        worker.send(theirs.rare, run.id)
        assert is_free(place(run))
        assert run.notes("begin") == [f"begin {first.id}"]

    def test_unique_lock_blocking_and_unique_lock_timeout(self, worker, run, first):
        begun = datetime.now(UTC)
        second_gets_first(worker, run, first)
        assert datetime.now(UTC) - begun < timedelta(seconds=1)

    def test_lock_prefix(self, redis_server):
        @single_instance(key=NAME)
        def work():
            return list(redis_server.scan_iter(f"*mine:*lock:{NAME}"))

        with override_settings(REDISLOCK_PREFIX="mine"):
            assert len(work()) == 1

    def test_setup_redis(self):
        assert at_another_alias("elsewhere") == (True, False)

    def test_rate_limit(self, worker, run):
        results = [worker.send(theirs.two_in_two_seconds, run.id) for _ in range(3)]
        run.wait_for("begin", 2)
        first = min(holding.acquired_at for holding in locks.get(place(run)).holders)
        run.wait_for("begin", 3)
        last = max(holding.acquired_at for holding in locks.get(place(run)).holders)
        assert last - first >= timedelta(seconds=2)
        assert [outcome(each) for each in results] == [0, 0, 0]
        assert is_free(place(run))
        # What two cooldowns at a time leave goes with the next.
        with locks.semaphore(place(run), 2):
            pass

    def test_retries_that_a_rate_limit_makes(self, worker, run, hold):
        locks_held = [locks.semaphore(place(run), 2, timeout=30) for _ in range(2)]
        for lock in locks_held:
            assert lock.acquire()
        result = worker.send(theirs.two_in_two_seconds, run.id)
        wait_until(lambda: result.state == "RETRY")
        for lock in locks_held:
            lock.release()
        assert outcome(result) == 0
        assert is_free(place(run))

    def test_rate_limit_as_a_callable(self):
        with pytest.raises(TypeError, match="limit"):
            single_instance(limit=lambda args: 2)

    def test_only_after_key_seconds(self):
        def once_in_a_while():
            lock = locks.lock(NAME, at_least_for=1, blocking=False)
            if not lock.acquire():
                return False
            lock.release()
            return True

        assert [once_in_a_while(), once_in_a_while()] == [True, False]
        wait_until(once_in_a_while)
        assert is_free(NAME)

    def test_second_look_at_run_time(self, worker, run, first):
        held = locks.get(place(run))
        second = theirs.app.send_task(theirs.placed.name, (run.id,), queue=worker.queue)
        assert outcome(second) is None
        assert locks.get(place(run)).token == held.token

    def test_same_message_twice(self, worker, run):
        result = worker.send(theirs.running, run.id)
        run.wait_for("begin")
        worker.send(theirs.running, run.id, task_id=result.id)
        wait_until(lambda: worker.logged(result.id, "retry:", "AlreadyRunning"))
        assert len(run.notes("begin")) == 1
        run.go()
        wait_until(lambda: worker.logged(result.id, "was delivered twice, and has run"))
        assert len(run.notes("begin")) == 1
        assert is_free(place(run))

    def test_direct_call(self, run):
        run.go()
        assert theirs.placed(run.id) == "ran"
        assert locks.get(place(run)) is None

    def test_self_retry(self, worker, run):
        keeps_its_place_while_it_retries(worker, run)

    def test_broker_away(self, run):
        send_into_dead_end(run)

    def test_inspector(self, run, first):
        listed = {info.name: info.holder.task_id for info in locks.active()}
        assert listed[place(run)] == first.id


TESTS = {
    "cache-lock": TestFromCacheLock,
    "python-redis-lock": TestFromPythonRedisLock,
    "index": TestAllThree,
    "celery-once": TestFromCeleryOnce,
    "celery-singleton": TestFromCelerySingleton,
    "celery-heimdall": TestFromCeleryHeimdall,
}
"""The pages and the tests of their rows."""

ROW = re.compile(r"^\| ([^|]+?) \|.*\| [✓≈+✗] \|$", re.MULTILINE)


def rows(page):
    """Return the first cell of each row of the page's comparison."""
    return ROW.findall((PAGES / f"{page}.md").read_text())


def test_every_page_has_tests():
    assert {path.stem for path in PAGES.glob("*.md")} == {*TESTS}


@pytest.mark.parametrize("page", TESTS)
def test_every_row_has_a_test_and_every_test_a_row(page):
    names = ["test_" + re.sub(r"\W+", "_", row.lower()).strip("_") for row in rows(page)]
    assert sorted(names) == sorted(name for name in vars(TESTS[page]) if name[:5] == "test_")


@pytest.mark.parametrize("page", TESTS)
def test_every_row_of_a_comparison_ends_with_a_sign(page):
    text = (PAGES / f"{page}.md").read_text()
    comparison = text[text.index("\n| | ") :].strip().split("\n\n")[0].splitlines()
    assert len(comparison) - 2 == len(rows(page)) > 0
