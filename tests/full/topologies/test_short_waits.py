"""Redis before 7.0.8 treats a blocking timeout below a millisecond as no timeout."""

from django_redislock.engine.operations import Flow, Join, Wait
from django_redislock.engine.runners import run
from django_redislock.keys import Keys
from tests.servers import Node


def short_wait() -> Flow[object]:
    waiter = yield Join(Keys("short").of("never granted"), "token")
    return (yield Wait(waiter, 0.0004))


def test_a_wait_of_less_than_a_millisecond_ends() -> None:
    with Node("redis-6.2") as node:
        assert run(node.client(), short_wait()) is None
