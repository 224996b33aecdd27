"""Coroutine functions, and a limit that depends on the arguments."""

import asyncio
import os
import socket

import pytest

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import task_skipped
from tests.lock_tools import listening, start, waiting

from .tools import held_by, logged, make_task, run_message


def at_once(*coroutines):
    async def run():
        return await asyncio.gather(*coroutines, return_exceptions=True)

    return asyncio.run(run())


class TestCoroutineFunction:
    @pytest.fixture
    def make(self, name):
        """Return a function that makes a coroutine function which notes how many run."""

        def make(**options):
            @single_instance(key=f"{name}:{{number}}", **options)
            async def work(number):
                running.append(number)
                most.append(len(running))
                assert current_lock().name == f"{name}:{number}"
                await asyncio.sleep(0.05)
                running.remove(number)
                return number

            running, most = [], []
            work.most = most
            return work

        return make

    def test_it_is_a_coroutine_function_and_releases_its_lock(self, make, name):
        work = make()
        assert asyncio.iscoroutinefunction(work)
        assert at_once(work(1), work(number=2)) == [1, 2]
        assert held_by(name) == {}
        assert current_lock() is None

    def test_a_duplicate_is_skipped(self, make, caplog):
        work = make()
        assert sorted(at_once(work(1), work(1)), key=str) == [1, None]
        process = f"{socket.gethostname()}:{os.getpid()}"
        assert len(logged(caplog, "Call skipped: task=", process)) == 1

    @pytest.mark.parametrize("on_conflict", ["raise", "retry"])
    def test_a_duplicate_raises(self, make, on_conflict):
        work = make(on_conflict=on_conflict)
        results = at_once(work(1), work(1))
        (error,) = (each for each in results if each != 1)
        assert isinstance(error, AlreadyRunning)
        assert error.held_by

    def test_a_duplicate_waits(self, make):
        work = make(on_conflict="wait")
        assert at_once(work(1), work(1), work(1)) == [1, 1, 1]
        assert max(work.most) == 1

    def test_a_coroutine_function_as_receiver_does_not_break_a_skip(self, make, caplog):
        async def listen(**about):
            pass

        with listening(task_skipped, listen):
            assert sorted(at_once(*[make()(1) for _ in range(2)]), key=str) == [1, None]
        assert "Signal not sent" in caplog.text

    def test_a_task_that_outlives_the_function_is_not_inside(self, name):
        async def follow_up():
            await is_over.wait()
            assert current_lock() is None
            return await work(2)

        @single_instance(key=name, on_conflict="wait")
        async def work(number):
            if number == 1:
                started.append(asyncio.create_task(follow_up()))
            return number

        async def use():
            assert await work(1) == 1
            async with locks.lock(name):
                is_over.set()
                await asyncio.to_thread(waiting, locks, name, 1)
            assert await started[0] == 2

        is_over, started = asyncio.Event(), []
        asyncio.run(use())

    def test_a_call_from_inside_does_not_wait_for_itself(self, name):
        @single_instance(key=name, on_conflict="wait")
        async def work():
            return await work()

        (error,) = at_once(work())
        assert isinstance(error, AlreadyRunning)

    def test_an_error_and_a_cancellation_release_the_lock(self, name):
        @single_instance(key=name)
        async def work(error):
            if error:
                raise error
            await asyncio.sleep(60)

        async def cancelled():
            await asyncio.wait_for(work(None), 0.1)

        (error,) = at_once(work(LookupError("its own")))
        assert isinstance(error, LookupError)
        (error,) = at_once(cancelled())
        assert isinstance(error, TimeoutError)
        assert held_by(name) == {}

    def test_it_cannot_be_aborted(self):
        async def work(): ...

        with pytest.raises(ValueError, match="on_lost='abort' cannot interrupt a coroutine"):
            single_instance(on_lost="abort")(work)


class TestCallableLimit:
    def test_each_name_has_its_own_limit(self, name):
        @single_instance(
            key=f"{name}:{{plan}}",
            limit=lambda plan, hold=(): {"basic": 1, "gold": 2}[plan],
            on_conflict="raise",
        )
        def work(plan, hold=()):
            return [elsewhere(each) for each in hold]

        def elsewhere(hold):
            return start(lambda: work("gold" if hold is None else "basic", hold or ())).exception(
                60
            )

        assert work("gold", [None]) == [None]
        (error,) = work("basic", [()])
        assert isinstance(error, AlreadyRunning)
        assert held_by(name) == {}

    @pytest.mark.parametrize("mode", ["until_executing", "until_executed"])
    def test_it_limits_how_many_are_queued(self, app, name, mode):
        task = make_task(app, name, mode, limit=lambda slots: slots)
        first, second, third = (task.delay(2) for _ in range(3))
        assert first.id != second.id
        assert third.id in (first.id, second.id)
        assert run_message(app, task, 2, task_id=first.id) == "ran"
        assert list(held_by(name)) == [name]

    @pytest.mark.parametrize(
        ("limit", "kind"), [(0, ValueError), ("3", TypeError), (None, TypeError)]
    )
    def test_an_invalid_result_is_an_error_that_names_it(self, limit, kind):
        work = single_instance(limit=lambda number: limit)(lambda number: number)
        with pytest.raises(
            (TypeError, ValueError), match=f"the result of limit must be .*{limit!r}"
        ):
            work(1)
        assert locks.count() == 0

    def test_a_coroutine_function_is_refused_at_import(self):
        async def limit(): ...

        with pytest.raises(TypeError, match="limit must be a synchronous function"):
            single_instance(limit=limit)(lambda: None)
