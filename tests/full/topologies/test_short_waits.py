"""Redis before 7.0.8 treats a blocking timeout below a millisecond as no timeout."""

import asyncio

import pytest
import redis.asyncio

from django_redislock.engine.operations import Flow, Join, Wait
from django_redislock.engine.runners import arun, run
from django_redislock.keys import Keys
from tests.servers import Node


def short_wait() -> Flow[object]:
    waiter = yield Join(Keys("short").of("never granted"), "token")
    return (yield Wait(waiter, 0.0004))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_wait_of_less_than_a_millisecond_ends(colour: str) -> None:
    async def wait(url: str) -> object:
        async with redis.asyncio.Redis.from_url(url) as client:
            return await arun(client, short_wait())

    with Node("redis-6.2") as node:
        if colour == "sync":
            assert run(node.client(), short_wait()) is None
        else:
            assert asyncio.run(wait(node.url)) is None
