"""Coroutine functions, and a limit that depends on the arguments."""

import asyncio

import pytest

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import task_skipped
from tests.lock_tools import listening, start, waiting

from .tools import held_by


class TestCoroutineFunction:
    def test_it_holds_its_lock_until_it_ends_or_is_cancelled(self, name):
        @single_instance(key=f"{name}:{{number}}")
        async def work(number):
            assert current_lock().name == f"{name}:{number}"
            await asyncio.sleep(60 if number == 3 else 0)
            return number

        async def use():
            assert await asyncio.gather(work(1), work(number=2)) == [1, 2]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work(3), 0.1)

        assert asyncio.iscoroutinefunction(work)
        asyncio.run(use())
        assert held_by(name) == {}
        assert current_lock() is None

    def test_a_duplicate_is_skipped_or_raises(self, name, caplog):
        async def listen(**about): ...

        @single_instance(key=name)
        async def work():
            with listening(task_skipped, listen):  # an async receiver cannot break a skip
                assert await single_instance(key=name)(body)() is None
            for on_conflict in ("raise", "retry"):
                with pytest.raises(AlreadyRunning) as caught:
                    await single_instance(key=name, on_conflict=on_conflict)(body)()
                assert caught.value.held_by
            return "ran"

        async def body():
            pytest.fail("it ran")

        assert asyncio.run(work()) == "ran"
        assert "Signal not sent" in caplog.text

    def test_it_waits_for_others_and_not_for_itself(self, name):
        async def follow_up():
            await is_over.wait()
            assert current_lock() is None
            return await work(2)

        @single_instance(key=name, on_conflict="wait")
        async def work(number):
            if number == 1:
                with pytest.raises(AlreadyRunning):
                    await work(3)
                started.append(asyncio.create_task(follow_up()))
            return number

        async def use():
            assert await work(1) == 1
            async with locks.lock(name):
                is_over.set()
                await asyncio.to_thread(waiting, locks, name, 1)
            assert await started[0] == 2  # it outlived the function, and is not inside it

        is_over, started = asyncio.Event(), []
        asyncio.run(use())

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

    def test_an_invalid_result_is_an_error_that_names_it(self):
        work = single_instance(limit=lambda number: 0)(lambda number: number)
        with pytest.raises(ValueError, match=r"the result of limit must be .*0"):
            work(1)
        assert locks.count() == 0
