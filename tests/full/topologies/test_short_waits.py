"""Redis before 7.0.8 takes a blocking timeout below a millisecond for none."""

import asyncio

import pytest
import redis.asyncio

from django_redislock.engine.operations import BlockingPop, Flow
from django_redislock.engine.runners import arun, run
from tests.servers import Node


def short_wait() -> Flow[str | None]:
    return (yield BlockingPop("never:pushed", 0.0004, limit=5))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_wait_of_less_than_a_millisecond_ends(colour: str) -> None:
    async def wait(url: str) -> str | None:
        async with redis.asyncio.Redis.from_url(url) as client:
            return await arun(client, short_wait())

    with Node("redis-6.2") as node:
        if colour == "sync":
            assert run(node.client(), short_wait()) is None
        else:
            assert asyncio.run(wait(node.url)) is None
