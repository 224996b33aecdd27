"""Commands and their answers in one round trip, in both colours: to one server, or to those of
several that keep the keys. What Redis answers by an error is an answer like others."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import (
    ClusterError,
    ConnectionError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..connection import AsyncClient, Client, Nodes
from ..connection.nodes import REDIRECTIONS
from .ops import Command
from .pools import PATIENCE, PAUSE, connection_of, is_exhausted

LONGEST_MOVE = 5.0
"""Seconds for which a slot of a Cluster may be between two nodes, and its keys with neither."""


def keeper(client: Any, key: str) -> Any:
    """The client of the server that keeps a key, where several do."""
    return client.at(key) if isinstance(client, Nodes) else client


def is_elsewhere(answer: Any) -> bool:
    """Whether it says that the server has nothing more to say of a key: another has it now, or
    will, or who waited was let go as its server became a replica."""
    return isinstance(answer, REDIRECTIONS) or (
        isinstance(answer, ResponseError)
        and ("UNBLOCKED" in str(answer) or "READONLY" in str(answer))
    )


def _is_of_a_replica(answer: Any) -> bool:
    # Inside of a script's error before Redis 7, so that its class does not tell.
    return isinstance(answer, ResponseError) and "READONLY" in str(answer)


def _by_node(nodes: Nodes, commands: Sequence[Command]) -> dict[Any, list[int]]:
    """The places of the commands that each node is sent. One without a key goes where the one
    before it went."""
    places: dict[Any, list[int]] = {}
    node = None
    for place, command in enumerate(commands):
        key = _key(command)
        if node is None or key:
            node = nodes.at(key)
        places.setdefault(node, []).append(place)
    return places


def _key(command: Command) -> str:
    if command[0] in ("EVALSHA", "EVAL"):
        return str(command[3]) if command[2] else ""
    return str(command[1]) if command[0] == "BLPOP" else ""


# Sync: one connection of the client's pool, the commands in one go. Straight to the connection,
# because only there can an answer be waited for no longer than a limit.


def ask(client: Client, commands: Sequence[Command], limit: float | None) -> list[Any]:
    """Raises redis-py's errors where there is no answer, by `limit` seconds if there is one."""
    until = None if limit is None else time.monotonic() + limit
    if isinstance(client, Nodes):
        return _ask_nodes(client, commands, until)
    return _ask(client, commands, until)


def _ask_nodes(nodes: Nodes, commands: Sequence[Command], until: float | None) -> list[Any]:
    answers: list[Any] = [None] * len(commands)
    try:
        for node, places in _by_node(nodes, commands).items():
            told = _ask(node, [commands[place] for place in places], until)
            for place, answer in zip(places, told, strict=True):
                answers[place] = answer
    except (ConnectionError, RedisTimeoutError):
        nodes.look_again()
        raise
    return _all_followed(nodes, commands, answers, until)


def _all_followed(
    nodes: Nodes, commands: Sequence[Command], answers: Sequence[Any], until: float | None
) -> list[Any]:
    followed = [
        _followed(nodes, command, answer, until) if isinstance(answer, REDIRECTIONS) else answer
        for command, answer in zip(commands, answers, strict=True)
    ]
    if followed != answers and commands[-1][0] == "WAIT":
        followed[-1] = 0  # those of the wrong node
    return followed


def _followed(nodes: Nodes, command: Command, answer: Exception, until: float | None) -> Any:
    patience = time.monotonic() + LONGEST_MOVE
    while True:
        try:
            return nodes.follow(command, answer)
        except TryAgainError as error:
            if time.monotonic() > min(patience, until or patience):
                return error.with_traceback(None)
            time.sleep(PAUSE)
        except ResponseError as error:
            return error.with_traceback(None)


def _ask(client: Any, commands: Sequence[Command], until: float | None) -> list[Any]:
    if client.connection:  # it sticks to a connection
        return [_answer_of(client, command) for command in commands]
    pool = client.connection_pool
    connection = connection_of(pool, until)
    try:
        if until is not None:
            return _exchange(connection, commands, until)
        answers: list[Any] = connection.retry.call_with_retry(
            lambda: _exchange(connection, commands, None), lambda error: connection.disconnect()
        )
        return answers
    finally:
        pool.release(connection)


def _exchange(connection: Any, commands: Sequence[Command], until: float | None) -> list[Any]:
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        answers = [_read(connection, until) for _ in commands]
    except BaseException:
        connection.disconnect()  # or what is unread would answer the next command
        raise
    if any(map(_is_of_a_replica, answers)):
        connection.disconnect()  # the next may lead to the new primary
    return answers


def _read(connection: Any, until: float | None) -> Any:
    if until is not None and not connection.can_read(max(0, until - time.monotonic())):
        raise RedisTimeoutError("Redis did not answer in time")
    try:
        return connection.read_response()
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive


def _answer_of(client: Any, command: Command) -> Any:
    try:
        return client.execute_command(*command)
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive


# Async: through the client, whose commands can be cancelled at any moment.


async def aask(
    client: AsyncClient, commands: Sequence[Command], limit: float | None, key: str = ""
) -> list[Any]:
    """See ask(). A Cluster's client sends commands without keys to the keeper of `key`."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(limit):
            answers = await _aask(client, commands, key)
    except TimeoutError as error:
        raise RedisTimeoutError("Redis did not answer in time") from error
    except RedisClusterException as error:  # which is none of redis-py's RedisError
        raise ConnectionError(str(error)) from error
    if task and task.cancelling() > before:
        # redis-py sends by asyncio.wait_for(), which on Python 3.11 can swallow a cancellation.
        raise asyncio.CancelledError
    return answers


async def _aask(client: AsyncClient, commands: Sequence[Command], key: str) -> list[Any]:
    if not isinstance(client, Nodes):
        return await _aexchange(client, commands, key)
    answers: list[Any] = [None] * len(commands)
    for node, places in _by_node(client, commands).items():
        told = await _aexchange(node, [commands[place] for place in places], key)
        for place, answer in zip(places, told, strict=True):
            answers[place] = answer
    return answers


async def _aexchange(client: Any, commands: Sequence[Command], key: str) -> list[Any]:
    began = time.monotonic()
    while True:
        try:
            answers = await _asend(client, commands, key)
            break
        except ConnectionError as error:
            if not is_exhausted(error) or time.monotonic() > began + PATIENCE:
                raise
        except ClusterError:  # what redis-py says when it was redirected too often
            if time.monotonic() > began + LONGEST_MOVE:
                raise
        await asyncio.sleep(PAUSE)
    if any(map(_is_of_a_replica, answers)) and hasattr(client, "connection_pool"):
        await client.connection_pool.disconnect(inuse_connections=False)
    return answers


async def _asend(client: Any, commands: Sequence[Command], key: str) -> list[Any]:
    # WAIT is about what its own connection wrote, and a Cluster's pipeline would send it to any.
    key = key or (_key(commands[0]) if commands[-1][0] == "WAIT" else "")
    if key and hasattr(client, "get_node_from_key"):
        return await _asend_to_node(client, commands, key)
    if len(commands) == 1:
        return [await _aanswer_of(client, commands[0])]
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = await pipeline.execute(raise_on_error=False)
    return answers


async def _asend_to_node(cluster: Any, commands: Sequence[Command], key: str) -> list[Any]:
    await cluster.initialize()
    try:
        answers = await _aexchange_with(cluster.get_node_from_key(key), commands)
    except (ConnectionError, RedisTimeoutError, asyncio.CancelledError):
        _look_again(cluster)
        raise
    if not any(map(is_elsewhere, answers)):
        return answers
    return [*[await _aanswer_of(cluster, each) for each in commands[:-1]], 0]


async def _aexchange_with(node: Any, commands: Sequence[Command]) -> list[Any]:
    connection = node.acquire_connection()
    try:
        await connection.send_packed_command(connection.pack_commands(commands))
        return [await _aread(connection) for _ in commands]
    except BaseException:
        await connection.disconnect(nowait=True)  # what is unread would answer the next command
        raise
    finally:
        # Before redis-py 6 a node has no method for it.
        getattr(node, "release", node._free.append)(connection)


async def _aread(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive


_looks: WeakKeyDictionary[Any, asyncio.Task[None]] = WeakKeyDictionary()


def _look_again(cluster: Any) -> None:
    """One of its nodes failed: have it see whether another has taken over."""
    look = _looks.get(cluster)
    if look is None or look.done():
        _looks[cluster] = asyncio.create_task(_look(cluster))


async def _look(cluster: Any) -> None:
    with suppress(Exception):
        await cluster.nodes_manager.initialize()


async def _aanswer_of(client: Any, command: Command) -> Any:
    try:
        return await client.execute_command(*command)
    except ClusterError:
        raise
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive
