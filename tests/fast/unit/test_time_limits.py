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


def test_limits_of_equal_length_end_one_after_the_other():
    async def main():
        never = asyncio.Event()
        ended = []

        async def wait(number):
            with pytest.raises(TimeoutError):
                await within(SOON, never.wait())
            ended.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(wait(number))
                await asyncio.sleep(SOON / 10)
        assert ended == [0, 1, 2, 3, 4]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_cancellation_from_outside_is_no_timeout():
    async def main():
        task = asyncio.create_task(within(FOREVER, asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 30))
