"""Coroutine functions, and a limit that depends on the arguments."""

import asyncio
import os
import socket

import pytest

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import task_skipped
from tests.lock_tools import listening, start, waiting

from .tools import held_by, logged


def at_once(*coroutines):
    async def run():
        return await asyncio.gather(*coroutines, return_exceptions=True)

    return asyncio.run(run())


class TestCoroutineFunction:
    def test_it_is_a_coroutine_function_and_releases_its_lock(self, name):
        @single_instance(key=f"{name}:{{number}}")
        async def work(number):
            assert current_lock().name == f"{name}:{number}"
            return number

        assert asyncio.iscoroutinefunction(work)
        assert at_once(work(1), work(number=2)) == [1, 2]
        assert held_by(name) == {}
        assert current_lock() is None

    def test_a_duplicate_is_skipped_or_raises(self, name, caplog):
        async def listen(**about): ...

        @single_instance(key=name)
        async def work():
            with listening(task_skipped, listen):  # an async receiver cannot break a skip
                assert await work_again() is None
            for on_conflict in ("raise", "retry"):
                with pytest.raises(AlreadyRunning) as caught:
                    await single_instance(key=name, on_conflict=on_conflict)(body)()
                assert caught.value.held_by
            return "ran"

        async def body():
            pytest.fail("it ran")

        work_again = single_instance(key=name)(body)
        assert asyncio.run(work()) == "ran"
        process = f"{socket.gethostname()}:{os.getpid()}"
        assert len(logged(caplog, "Call skipped: task=", process)) == 1
        assert "Signal not sent" in caplog.text

    def test_a_duplicate_waits(self, name):
        @single_instance(key=name, on_conflict="wait")
        async def work():
            running.append(1)
            await asyncio.sleep(0)
            most.append(len(running))
            running.pop()

        running, most = [], []
        at_once(work(), work(), work())
        assert most == [1, 1, 1]

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
        limits = {"basic": 1, "gold": 2}

        @single_instance(key=f"{name}:{{plan}}", limit=lambda plan: limits[plan])
        def work(plan):
            inner = start(single_instance(key=f"{name}:{plan}", limit=limits[plan])(lambda: "ran"))
            return inner.result(60)

        assert work("gold") == "ran"
        assert work("basic") is None
        assert held_by(name) == {}

    @pytest.mark.parametrize(("limit", "kind"), [(0, ValueError), (None, TypeError)])
    def test_an_invalid_result_is_an_error_that_names_it(self, limit, kind):
        work = single_instance(limit=lambda number: limit)(lambda number: number)
        with pytest.raises(kind, match=f"the result of limit must be .*{limit!r}"):
            work(1)
        assert locks.count() == 0

    def test_a_coroutine_function_is_refused_at_import(self):
        async def limit(): ...

        with pytest.raises(TypeError, match="limit must be a synchronous function"):
            single_instance(limit=limit)(lambda: None)
