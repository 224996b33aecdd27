"""Runners perform the operations of a flow, sync and async: replies, errors, cancellation.

Replies are bytes, also if the client decodes its replies."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha1
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError

from django_redislock import LockError
from django_redislock.backends import ClientServer
from django_redislock.engine.operations import Batch, Call, Flow, Gather, RawCommands, Sleep
from django_redislock.engine.runners import arun, run
from django_redislock.lua import Script
from tests.tools import no_new_threads

Runner = Callable[[Flow[Any]], Any]


def script(source: str) -> Script:
    return Script("own", source, sha1(source.encode(), usedforsecurity=False).hexdigest())


ECHO = script("return ARGV[1]")
FAIL = script("return redis.error_reply('NOT today')")


def call(answer: str, **options: Any) -> Call:
    return Call(ECHO, (), (answer,), **options)


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
        yield client


def with_async_client(use: Callable[[Any], Any], made: Any = redis.asyncio.Redis) -> Any:
    async def main() -> Any:
        async with made.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
            return await use(client)

    return asyncio.run(main())


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest, client: redis.Redis) -> Runner:
    """Run a flow to its end in one of the two colours."""
    if request.param == "sync":
        return lambda flow: run(client, flow)
    return lambda flow: with_async_client(lambda client: arun(client, flow))


def wanting(*ops: Any) -> Flow[list[Any]]:
    answers = []
    for op in ops:
        answer = yield op
        answers.append(answer)
    return answers


def test_a_flow_gets_an_answer_for_each_operation(drive: Runner) -> None:
    wanted = [call("a"), call("b", vital=True), Batch((call("c"), call("d"))), Sleep(0)]
    assert drive(wanting(*wanted)) == [b"a", b"b", [b"c", b"d"], None]


@pytest.mark.parametrize("vital", [False, True])
@pytest.mark.parametrize("in_batch", [False, True])
def test_an_error_that_redis_answers_is_raised_inside_of_the_flow(
    drive: Runner, vital: bool, in_batch: bool
) -> None:
    def flow() -> Flow[str]:
        fails = Call(FAIL, (), (), vital=vital)
        with pytest.raises(ResponseError, match="NOT today"):
            yield Batch((call("a"), fails)) if in_batch else fails
        return (yield call("goes on"))

    for _ in range(2):  # first in full, then by its digest
        assert drive(flow()) == b"goes on"


def test_flows_at_the_same_time_each_have_an_outcome(client: redis.Redis) -> None:
    there = (ClientServer(client), wanting(call("a")))
    fails = (ClientServer(client), wanting(Call(FAIL, (), ())))
    first, second = run(client, each(there, fails))
    assert first == [b"a"]
    assert isinstance(second, ResponseError)


def each(*wanted: Any) -> Flow[Any]:
    return (yield Gather(wanted))


def test_a_pool_that_is_reset_meanwhile_costs_no_answer() -> None:
    async def use(client: Any) -> Any:
        pool = client.connection_pool
        await arun(client, wanting(call("a")))  # leaves an idle connection
        waits = asyncio.create_task(
            arun(client, wanting(RawCommands((("BLPOP", "nobody:pushes", 0.1),), 5)))
        )
        await asyncio.sleep(0)  # it waits for its answer
        [connection] = pool._in_use_connections
        pool.reset()
        answers = await waits
        await connection.disconnect()
        return answers

    assert with_async_client(use) == [[None]]


def test_where_no_thread_can_be_started_the_caller_does_it_all(client: redis.Redis) -> None:
    for name in "abc":
        run(client, wanting(call(name)))
    there = [(ClientServer(client), wanting(call(name))) for name in "abc"]
    with no_new_threads():
        with pytest.raises(RuntimeError):
            threading.Thread(target=print).start()
        assert run(client, each(*there)) == [[b"a"], [b"b"], [b"c"]]


# Cancellation


def cancelled_at_once(flow: Flow[Any], made: Any = redis.asyncio.Redis) -> Any:
    """Run a flow in a task that is cancelled during the first operation."""

    async def use(client: Any) -> Any:
        task = asyncio.create_task(arun(client, flow))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with_async_client(use, made)


def test_after_a_late_cancellation_only_what_is_vital_is_done() -> None:
    known = []

    def flow() -> Flow[None]:
        known.append((yield call("a", vital=True)))
        known.append((yield call("b", vital=True)))
        try:
            yield call("c")
        except asyncio.CancelledError:
            known.append((yield call("d", vital=True)))
            raise

    cancelled_at_once(flow())
    assert known == [b"a", b"b", b"d"]


def test_a_flow_that_fails_after_a_late_cancellation_is_cancelled() -> None:
    def flow() -> Flow[None]:
        yield call("a", vital=True)
        raise LockError("no")

    cancelled_at_once(flow())


def test_a_vital_operation_that_fails_meanwhile_is_a_cancellation_to_the_flow() -> None:
    seen = []

    def flow() -> Flow[None]:
        try:
            yield Call(FAIL, (), (), vital=True)
        except BaseException as error:
            seen.append(type(error))
            raise

    cancelled_at_once(flow())
    assert seen == [asyncio.CancelledError]


class Swallowing(redis.asyncio.Connection):
    """A connection that loses a cancellation, as ``asyncio.wait_for`` could before Python 3.12."""

    async def connect(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await super().connect()


def test_a_cancellation_that_the_client_swallows_counts_nevertheless() -> None:
    seen: list[bytes] = []

    def flow() -> Flow[None]:
        seen.append((yield call("a")))

    made = partial(redis.asyncio.Redis.from_url, connection_class=Swallowing)
    cancelled_at_once(flow(), SimpleNamespace(from_url=made))
    assert seen == []


def test_a_task_that_was_cancelled_before_may_still_ask() -> None:
    # As in a `finally`, which runs in a task whose cancellation is on its way out.
    async def use(client: Any) -> Any:
        task = asyncio.current_task()
        assert task
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await arun(client, wanting(call("a")))

    assert with_async_client(use) == [b"a"]


def test_a_closed_coroutine_closes_its_flow() -> None:
    closed = SimpleNamespace(by=None)

    def flow() -> Flow[None]:
        try:
            yield Sleep(60)
        except GeneratorExit as error:
            closed.by = error
            raise

    async def use(client: Any) -> None:
        coroutine = arun(client, flow())
        coroutine.send(None)
        coroutine.close()

    with_async_client(use)
    assert isinstance(closed.by, GeneratorExit)
