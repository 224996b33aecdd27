import asyncio

import pytest

from django_redislock.engine.time_limits import within

FOREVER, SOON = 3600, 0.05


def test_a_short_limit_ends_in_time_while_longer_ones_run():
    async def main():
        never = asyncio.Event()
        longer = [asyncio.create_task(within(FOREVER, never.wait())) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await within(SOON, never.wait())
        assert not any(task.done() for task in longer)
        never.set()
        assert await asyncio.gather(*longer) == [True] * 3
        assert await within(SOON, never.wait())

    asyncio.run(asyncio.wait_for(main(), 30))


def test_limits_that_began_at_different_times_all_end():
    async def main():
        async def wait():
            with pytest.raises(TimeoutError):
                await within(SOON, asyncio.Event().wait())

        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(wait())
                await asyncio.sleep(SOON / 10)

    asyncio.run(asyncio.wait_for(main(), 30))


class CountingLoop(asyncio.SelectorEventLoop):
    timers = 0

    def call_at(self, *args, **kwargs):
        self.timers += 1
        return super().call_at(*args, **kwargs)


def test_limits_inside_limits_need_few_timers():
    async def main():
        loop, sleeps = asyncio.get_running_loop(), 0
        until = loop.time() + 20 * SOON
        while loop.time() < until:
            await within(1.1 * SOON, within(SOON, asyncio.sleep(SOON / 10)))
            sleeps += 1
        assert loop.timers - sleeps < 100

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_a_cancellation_from_outside_is_no_timeout():
    async def main():
        task = asyncio.create_task(within(FOREVER, asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 30))
