"""Commands and their answers in one round trip, in both colours: to one server, or to those of
several that keep the keys. What Redis answers by an error is an answer like others."""

import asyncio
import math
import os
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from redis.client import NEVER_DECODE
from redis.exceptions import ConnectionError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..backends import AsyncClient, Client, Nodes
from ..backends.cluster import AsyncNode, is_of_replica, is_redirection
from .operations import Command, Parts
from .pools import (
    PATIENCE,
    PAUSE,
    agive_back,
    connection_of,
    connection_on_loop,
    disconnect_idle,
    give_back,
    idle_of,
    idle_on_loop,
    is_exhausted,
    is_plain,
)

T = TypeVar("T")

LONGEST_MOVE = 5.0
"""Seconds for which a slot of a Cluster may be between two nodes, and its keys with neither."""

LEAST_TIME_TO_REPLY = 0.25
"""Seconds that Redis has to reply, however long it took to get a connection."""

LONGEST_PAUSE = 0.05
"""Seconds until it is looked whether it has arrived."""

ASKING: Command = (("ASKING",),)

RAW = {NEVER_DECODE: True}
"""Answers are bytes, also those to a client that was told to decode them: one that is no text, as
somebody else may have written, would there be an error for all that came with it."""


def keeper(client: Any, key: str) -> Any:
    """The client of the server that keeps a key, where several do."""
    return client.at(key) if isinstance(client, Nodes) else client


def is_elsewhere(answer: Any) -> bool:
    """Whether it says that the server has nothing more to say of a key: another has it now, or
    will, or who waited was let go as its server became a replica."""
    is_unblocked = isinstance(answer, ResponseError) and "UNBLOCKED" in str(answer)
    return is_redirection(answer) or is_unblocked


def _leads_astray(answers: Sequence[Any]) -> bool:
    """Whether the connection leads to a replica, and so do the others of that time: those that are
    made from here on may lead to the new primary."""
    return any(map(is_of_replica, answers))


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


def _redirected(answers: Sequence[Any]) -> list[int]:
    return [place for place, answer in enumerate(answers) if is_redirection(answer)]


def _after_redirections(
    commands: Sequence[Command], answers: list[Any], followed: dict[int, Any]
) -> list[Any]:
    for place, answer in followed.items():
        answers[place] = answer
    if followed and commands[-1][0][0] == "WAIT":
        answers[-1] = 0  # it was told of the replicas of the wrong node
    return answers


def _pauses(until: float | None) -> Iterator[float]:
    """Seconds to wait before each try to follow a redirection, for as long as there is time."""
    pause, patience = 0.0, time.monotonic() + LONGEST_MOVE
    while time.monotonic() < min(patience, until or patience):
        yield pause
        pause = min(pause * 2 or PAUSE, LONGEST_PAUSE)


def _packed(commands: Sequence[Command]) -> bytes:
    """As Redis reads them; redis-py takes three times as long for it."""
    return b"".join(map(_packed_one, commands))


def _packed_one(command: Command) -> bytes:
    *known, rest = command
    return b"*%d\r\n%s%s" % (sum(map(len, command)), b"".join(map(_known, known)), _bulks(rest))


def _bulks(parts: Parts) -> bytes:
    packed = "".join([f"${len(each)}\r\n{each}\r\n" for each in map(str, parts)])
    if packed.isascii():
        return packed.encode()
    encoded = [str(each).encode() for each in parts]  # sizes are in bytes, not in characters
    return b"".join([b"$%d\r\n%s\r\n" % (len(each), each) for each in encoded])


_known = lru_cache(maxsize=256)(_bulks)


def _parts(command: Command) -> Parts:
    return tuple(chain.from_iterable(command))


def _encoded(command: Command) -> tuple[str | bytes, ...]:
    """As `_packed` does it, whatever the client's own encoding is."""
    name, *rest = map(str, _parts(command))
    return (name, *[each.encode() for each in rest])


def _key(command: Command) -> str:
    name, *rest = _parts(command)
    if name in ("EVALSHA", "EVAL"):
        return str(rest[2]) if rest[1] else ""
    return str(rest[0]) if name == "BLPOP" else ""


# Sync: one connection of the client's pool, the commands in one go. Straight to the connection,
# because only there can an answer be waited for no longer than a limit.


def ask(
    client: Client,
    commands: Sequence[Command],
    limit: float | None,
    *,
    patience: float = PATIENCE,
) -> list[Any]:
    """Raises redis-py's errors where there is no answer, by `limit` seconds if there is one.

    If all connections of a pool are in use, it waits up to `patience` seconds for one.
    """
    until = None if limit is None else time.monotonic() + limit
    if isinstance(client, Nodes):
        return _ask_nodes(client, commands, until, patience)
    return _ask(client, commands, until, patience)


def _ask_nodes(
    nodes: Nodes, commands: Sequence[Command], until: float | None, patience: float
) -> list[Any]:
    answers: list[Any] = [None] * len(commands)
    try:
        for node, places in _by_node(nodes, commands).items():
            told = _ask(node, [commands[place] for place in places], until, patience)
            for place, answer in zip(places, told, strict=True):
                answers[place] = answer
        return _after_redirections(
            commands,
            answers,
            {
                place: _followed(nodes, commands[place], answers[place], until, patience)
                for place in _redirected(answers)
            },
        )
    except (ConnectionError, RedisTimeoutError):
        nodes.look_again()
        raise


def _followed(
    nodes: Nodes, command: Command, answer: Any, until: float | None, patience: float
) -> Any:
    """What a command that was answered by a redirection is answered in the end."""
    for pause in _pauses(until):
        asked_once = nodes.redirected(answer)
        if asked_once:
            _, answer = _ask(asked_once, [ASKING, command], until, patience)
        else:
            time.sleep(pause)
            [answer] = _ask(nodes.at(_key(command)), [command], until, patience)
        if not is_redirection(answer):
            break
    return answer


def _ask(
    client: Any, commands: Sequence[Command], until: float | None, patience: float
) -> list[Any]:
    if client.connection:  # it sticks to one
        with _turn(client):
            return [_answer_of(client, command) for command in commands]
    pool = client.connection_pool
    plain = is_plain(pool)
    lent: list[Any] = []
    try:
        connection = (plain and idle_of(pool)) or connection_of(pool, until, patience)
        lent = [connection]
        if until is not None:  # the connection may have come late, as this process was stopped
            until = max(until, time.monotonic() + LEAST_TIME_TO_REPLY)
        answers = _answers_by(connection, commands, until)
        if _leads_astray(answers):
            connection.disconnect()
            disconnect_idle(pool)
        return answers
    finally:
        try:
            if lent:
                give_back(pool, lent, plain)
        finally:
            if lent:  # an interrupt came before that
                give_back(pool, lent, plain)


_turns: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_turns.clear)  # a thread of the parent may have had its turn


def _turn(client: Any) -> threading.RLock:
    # The renewal asks by the same connection, and redis-py 5 has no lock of its own for it.
    return _turns.get(client) or _turns.setdefault(client, threading.RLock())


def _retries(connection: Any) -> bool:
    """Whether what fails is to be tried again; that of the caches' own pools is not."""
    return getattr(connection.retry, "_retries", 1) != 0


def _answers_by(connection: Any, commands: Sequence[Command], until: float | None) -> list[Any]:
    if until is not None or not _retries(connection):
        return _exchange(connection, commands, until)
    answers: list[Any] = connection.retry.call_with_retry(
        lambda: _exchange(connection, commands, None), lambda error: connection.disconnect()
    )
    return answers


def _exchange(connection: Any, commands: Sequence[Command], until: float | None) -> list[Any]:
    try:
        # Where there is a limit, `pools` saw to that: what hangs would know none.
        connection.send_packed_command([_packed(commands)], check_health=until is None)
        return [_read(connection, until) for _ in commands]
    except BaseException:
        connection.disconnect()  # or what is unread would answer the next command
        raise


def _read(connection: Any, until: float | None) -> Any:
    if until is not None and not _has_arrived(connection, until):
        raise RedisTimeoutError("Redis did not respond in time")
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive


def _has_arrived(connection: Any, until: float) -> bool:
    # A signal that arrives while the process waits can end the first look too early, also if the
    # process was stopped. A reply that is there by then counts.
    left = max(0, until - time.monotonic())
    return bool(connection.can_read(left) or connection.can_read(0))


def _answer_of(client: Any, command: Command) -> Any:
    try:
        return client.execute_command(*_encoded(command), **RAW)
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive


# Async: through the client, whose commands can be cancelled at any moment.


async def aask(
    client: AsyncClient,
    commands: Sequence[Command],
    limit: float | None,
    *,
    once: bool = False,
    patience: float = PATIENCE,
) -> list[Any]:
    """See ask(). `once`: not to be repeated, also by a client that does so."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        answers = await _within(limit, _aask(client, commands, once, patience))
    except TimeoutError as error:
        if isinstance(client, Nodes):
            client.look_again()
        raise RedisTimeoutError("Redis did not respond in time") from error
    if task and task.cancelling() > before:
        # redis-py sends by asyncio.wait_for(), which on Python 3.11 can swallow a cancellation.
        raise asyncio.CancelledError
    return answers


async def _within(seconds: float | None, reply: Coroutine[Any, Any, T]) -> T:
    """Await a reply. Raise `TimeoutError` if it has not arrived within `seconds`, if given.

    If the event loop was busy when the time ended, the reply may have arrived since: nobody has
    looked. So the loop gets as long again as it was late, to read what is there.
    """
    if seconds is None:
        return await reply
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    async with asyncio.timeout(None) as timeout:

        def expire() -> None:
            now = loop.time()
            timeout.reschedule(now + min(now - due, seconds))

        timer = loop.call_at(due, expire)
        try:
            return await reply
        finally:
            timer.cancel()


async def _aask(
    client: AsyncClient, commands: Sequence[Command], once: bool, patience: float
) -> list[Any]:
    if not isinstance(client, Nodes):
        return await _aexchange(client, commands, once, patience)
    try:
        return await _aask_nodes(client, commands, once, patience)
    except (ConnectionError, RedisTimeoutError):
        client.look_again()
        raise


async def _aask_nodes(
    nodes: Nodes, commands: Sequence[Command], once: bool, patience: float
) -> list[Any]:
    answers: list[Any] = [None] * len(commands)
    for node, places in _by_node(nodes, commands).items():
        told = await _aexchange(node, [commands[place] for place in places], once, patience)
        for place, answer in zip(places, told, strict=True):
            answers[place] = answer
    followed = {
        place: await _afollowed(nodes, commands[place], answers[place], once, patience)
        for place in _redirected(answers)
    }
    return _after_redirections(commands, answers, followed)


async def _afollowed(
    nodes: Nodes, command: Command, answer: Any, once: bool, patience: float
) -> Any:
    """See _followed()."""
    for pause in _pauses(None):
        asked_once = nodes.redirected(answer)
        if asked_once:
            _, answer = await _aexchange(asked_once, [ASKING, command], once, patience)
        else:
            await asyncio.sleep(pause)
            [answer] = await _aexchange(nodes.at(_key(command)), [command], once, patience)
        if not is_redirection(answer):
            break
    return answer


async def _aexchange(
    client: Any, commands: Sequence[Command], once: bool, patience: float
) -> list[Any]:
    began = time.monotonic()
    send = _asend_to_node if isinstance(client, AsyncNode) else _asend
    while True:
        try:
            return await send(client, commands, once)
        except ConnectionError as error:
            if not is_exhausted(error) or time.monotonic() > began + patience:
                raise
        await asyncio.sleep(PAUSE)


async def _asend(client: Any, commands: Sequence[Command], once: bool) -> list[Any]:
    pool = client.connection_pool
    if client.connection and len(commands) == 1 and not once:  # it keeps to one connection
        answers = [await _aanswer_of(client, commands[0])]
    elif connection := await idle_on_loop(pool):
        try:
            answers = await _asend_on(connection, commands, once)
        finally:
            await agive_back(pool, connection)
    else:
        connection = await connection_on_loop(pool)
        try:
            answers = await _asend_on(connection, commands, once)
        finally:
            await pool.release(connection)
    if _leads_astray(answers):
        await pool.disconnect(inuse_connections=False)
    return answers


async def _asend_on(connection: Any, commands: Sequence[Command], once: bool) -> list[Any]:
    if once or not _retries(connection):
        return await _aexchange_by(connection, commands)
    answers: list[Any] = await connection.retry.call_with_retry(
        lambda: _aexchange_by(connection, commands), lambda error: connection.disconnect()
    )
    return answers


async def _asend_to_node(node: AsyncNode, commands: Sequence[Command], once: bool) -> list[Any]:
    # Nothing sees that an idle connection was closed: so each is tried until one fails that was
    # made just now.
    while True:
        connection = node.take()
        was_connected = connection.is_connected and not once
        try:
            if once:
                await connection.disconnect()
            return await _aexchange_by(connection, commands)
        except ConnectionError:
            if not was_connected:
                raise
        finally:
            node.give_back(connection)


async def _aexchange_by(connection: Any, commands: Sequence[Command]) -> list[Any]:
    try:
        await connection.send_packed_command([_packed(commands)])
        return [await _aread(connection) for _ in commands]
    except BaseException as error:
        await connection.disconnect(nowait=True)  # or what is unread would answer the next command
        if isinstance(error, TypeError | AttributeError):  # what asyncio says if it was closed
            raise ConnectionError("The connection was closed during a command") from error
        raise


async def _aread(connection: Any) -> Any:
    # The connection's own timeout does not know of a busy event loop. Infinity turns it off.
    reply = connection.read_response(disable_decoding=True, timeout=math.inf)
    try:
        return await _within(connection.socket_timeout, reply)
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive
    except TimeoutError as error:
        raise RedisTimeoutError("Redis did not respond in time") from error


async def _aanswer_of(client: Any, command: Command) -> Any:
    try:
        return await client.execute_command(*_encoded(command), **RAW)
    except ResponseError as error:
        return error.with_traceback(None)  # it would keep its frames, and a lock in them, alive
