"""Send commands in one round trip and read their replies, in sync and async code.

Only the public API of redis-py is used: a connection of the client's pool, because only there can
the wait for a reply be limited. An error that Redis replies with is a value like other replies.
"""

import asyncio
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from redis import ConnectionPool
from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    MaxConnectionsError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..backends import AsyncClient, Client, Nodes
from ..backends.cluster import AsyncNode, is_readonly, key_of, route
from .gate import LoopGate, loop_gates, new_slots, slots_to_try, thread_slots
from .helper_threads import can_be_interrupted, run_apart
from .operations import Command
from .patches import check_patches, seen
from .time_limits import within

POOL_WAIT_SECONDS = 2.0
"""Seconds to wait for a connection if all that a pool may have are in use."""

POLL_INTERVAL_SECONDS = 0.005
"""Seconds between two attempts to get what another thread or server is about to release."""

MIN_REPLY_SECONDS = 0.25
"""Seconds that Redis has to reply, however long it took to get a connection."""

RESPONSIVE_SECONDS = 0.1
"""Seconds after a reply for which Redis counts as responsive, so that connecting has no limit."""

SERVER_SHARE_OF_TIMEOUT = 0.8
"""The part of the client's `socket_timeout` for which the server may let a command wait."""

POOL_EXHAUSTED = "Too many connections", "No connection available"
"""Beginnings of the errors of a pool and of a blocking pool whose connections are all in use."""

# Before redis-py 5.3 `get_connection()` requires the name of a command; later it is deprecated.
_COMMAND_NAME = (
    ("EVALSHA",)
    if signature(ConnectionPool.get_connection).parameters["command_name"].default
    is Parameter.empty
    else ()
)


def call(
    client: Client,
    commands: Sequence[Command],
    limit: float | None = None,
    *,
    urgent: bool = False,
    once: bool = False,
) -> list[Any]:
    """Send commands and return their replies.

    Args:
        client: A client of redis-py, or `Nodes`.
        commands: The commands. A command without a key goes to the node of the one before it.
        limit: Seconds to wait for the replies, and to connect. `None` leaves both, and whether to
            try again, to the client.
        urgent: Whether not to wait if all connections of the pool are in use. Other calls wait for
            `POOL_WAIT_SECONDS`. In asyncio, an urgent call also comes before other calls.
        once: Whether the commands must not be sent again if the connection breaks.

    Returns:
        A reply for each command: bytes, integers, lists, or an error that Redis replied with.

    Raises:
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: Redis did not reply.
        ImproperlyConfigured: gevent has patched this process in part, or too late.
    """
    if isinstance(client, Nodes):
        return _call_nodes(client, commands, limit, urgent, once)
    if seen.get_ident is not threading.get_ident or seen.socket_class is not socket.socket:
        check_patches()
    loan = Loan()
    loan.pool = client.connection_pool
    try:
        return _call_server(loan, commands, limit, urgent, once)
    finally:
        # An interrupt can strike anywhere, also at the end of `_call_server`.
        if loan or loan.slot or not loan.has_ended:
            loan.end()


def _call_server(
    loan: "Loan", commands: Sequence[Command], limit: float | None, urgent: bool, once: bool
) -> list[Any]:
    pool = loan.pool
    slots = thread_slots.get(pool) or new_slots(pool)
    keeps = getattr(pool, "keeps", False) and not once
    deadline = None if limit is None else time.monotonic() + limit
    try:
        for slot in slots:
            loan.slot = slot
            if slot.acquire(blocking=False):
                break
        else:
            longest = POOL_WAIT_SECONDS if limit is None else limit
            for slot, seconds in slots_to_try(slots, longest):
                loan.slot = slot
                if slot.acquire(timeout=seconds):
                    break
        if keeps:
            try:  # noqa: SIM105  suppress() costs more
                loan.extend(islice(iter(pool.kept.pop, None), 1))
            except IndexError:
                pass
        if loan and loan[0].pid != os.getpid():  # of the parent process
            loan.give_back()
        replies: list[Any]
        while True:
            was_kept = bool(loan)
            if not was_kept:
                loan.take(deadline, urgent=urgent)
            connection = loan[0]
            loan.has_unread_reply = True
            try:
                if deadline is None and not once:
                    replies = connection.retry.call_with_retry(
                        partial(_attempt, connection, commands),
                        lambda error, broken=connection: broken.disconnect(),
                    )
                else:
                    replies = _attempt(connection, commands, deadline)
                break
            except ConnectionError:
                if not was_kept:
                    raise
                loan.give_back()  # the server may have closed it
        loan.has_unread_reply = False
        if deadline is not None:
            _last_replies[pool] = time.monotonic()
        for reply in replies:
            if isinstance(reply, ResponseError) and is_readonly(reply):
                keeps = False
                connection.disconnect()  # new connections may lead to the new primary
                _run_safely(partial(_disconnect_idle, pool))
        # redis-py marks connections to a server that will be replaced.
        if keeps and not getattr(connection, "should_reconnect", bool)():
            pool.kept.extend(islice(iter(loan.pop, None), 1))
        return replies
    finally:
        loan.has_ended = True
        if loan:
            loan.give_back()
        if loan.slot:
            try:  # noqa: SIM105  an interrupt in the code of suppress() would keep the slot
                loan.slot.release()
            except RuntimeError:  # after an interrupt or a timeout it can be free
                pass
            loan.slot = None


def _call_nodes(
    nodes: Nodes, commands: Sequence[Command], limit: float | None, urgent: bool, once: bool
) -> list[Any]:
    deadline = None if limit is None else time.monotonic() + limit
    steps, replies = route(nodes, commands, deadline), None
    try:
        while True:
            pause, node, sent = steps.send(replies)
            time.sleep(pause)
            left = None if deadline is None else deadline - time.monotonic()
            replies = call(node, sent, left, urgent=urgent, once=once) if node else None
    except StopIteration as end:
        routed: list[Any] = end.value
        return routed
    except (ConnectionError, RedisTimeoutError):
        nodes.refresh()
        raise


async def acall(
    client: AsyncClient,
    commands: Sequence[Command],
    limit: float | None = None,
    *,
    urgent: bool = False,
    once: bool = False,
) -> list[Any]:
    """Async version of `call()`. With `once`, the client does not try again either."""
    task = asyncio.current_task()
    cancellations = task.cancelling() if task else 0
    exchange: Any = _acall_nodes if isinstance(client, Nodes) else _acall_server
    has_reply = False
    try:
        first = client.client_for(key_of(commands[0])) if isinstance(client, Nodes) else client
        pool = first.connection_pool
        gate = loop_gates.get(pool) or loop_gates.setdefault(pool, LoopGate(pool.max_connections))
        await gate.enter(limit, is_urgent=urgent)
        try:
            reply = exchange(client, commands, once, urgent)
            replies: list[Any] = await (reply if limit is None else within(limit, reply))
            has_reply = True
        finally:
            gate.leave(has_reply=has_reply)
    except (ConnectionError, RedisTimeoutError, TimeoutError) as error:
        if isinstance(client, Nodes):
            client.refresh()
        if isinstance(error, TimeoutError):
            raise RedisTimeoutError("Redis did not respond in time") from error
        raise
    if task and task.cancelling() > cancellations:
        # redis-py can send by asyncio.wait_for(), which on Python 3.11 can swallow a cancellation.
        raise asyncio.CancelledError
    return replies


async def _acall_nodes(
    nodes: Nodes, commands: Sequence[Command], once: bool, urgent: bool
) -> list[Any]:
    may_repeat = not once
    while True:
        steps, replies = route(nodes, commands, None), None
        try:
            while True:
                pause, node, sent = steps.send(replies)
                await asyncio.sleep(pause)
                replies = await _acall_server(node, sent, once, urgent) if node else None
        except StopIteration as end:
            routed: list[Any] = end.value
            return routed
        except ConnectionError as error:
            # An idle connection was closed, or a refresh of the slots closed it while it was in
            # use. The node may no longer be the right one.
            if not may_repeat or is_exhausted(error):
                raise
            may_repeat = False


def node_for_key(client: Any, key: str) -> Any:
    """Return the client of the server that has a key, if several servers share the keys."""
    return client.client_for(key) if isinstance(client, Nodes) else client


def _pack(commands: Sequence[Command]) -> bytes:
    """Return commands in the protocol of Redis, as UTF-8 for clients of any encoding.

    The pure Python method of redis-py takes twice as long.
    """
    parts = []
    for command in commands:
        parts.append(f"*{len(command)}\r\n")
        for part in command:
            text = str(part)
            size = len(text) if text.isascii() else len(text.encode())
            parts.append(f"${size}\r\n{text}\r\n")
    return "".join(parts).encode()


PARSER_ERRORS = ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError
"""The exceptions of redis-py for a reply that it cannot parse. It may not be from Redis."""

UNREADABLE = "Redis sent a reply that redis-py cannot parse"


# Sync


def _attempt(
    connection: Any, commands: Sequence[Command], deadline: float | None = None
) -> list[Any]:
    if deadline is not None:
        # It may have passed, because this process was stopped.
        deadline = max(deadline, time.monotonic() + MIN_REPLY_SECONDS)
    try:
        # A health check has no limit. `Loan.take` has made it.
        connection.send_packed_command([_pack(commands)], check_health=deadline is None)
        replies = []
        for _ in commands:
            if deadline is not None:
                # A signal can end the first wait too early, also if it stopped the process. A
                # reply that has arrived by then counts.
                left = max(0, deadline - time.monotonic())
                if not (connection.can_read(left) or connection.can_read(0)):
                    raise RedisTimeoutError("Redis did not respond in time")
            try:
                # As bytes: one reply that cannot be decoded would hide all other replies.
                replies.append(connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error.with_traceback(None))  # its frames would keep a lock alive
            except PARSER_ERRORS:
                raise InvalidResponse(UNREADABLE) from None
        return replies
    except BaseException:
        connection.disconnect()  # an unread reply would answer the next command
        raise


# Async


async def _acall_server(
    client: Any, commands: Sequence[Command], once: bool, urgent: bool
) -> list[Any]:
    pool = client.connection_pool
    connection: Any = None
    keeps, is_kept = getattr(pool, "keeps", False) and not once, False
    try:
        replies: list[Any] = []
        if keeps and pool.kept:
            connection = pool.kept.pop()
            try:
                replies = await connection.retry.call_with_retry(
                    partial(_asend_and_read, connection, commands),
                    lambda error: connection.disconnect(),
                )
            except ConnectionError:  # the server may have closed it
                broken, connection = connection, None
                await _arelease(pool, broken)
        if not connection:
            connection = await _aget_connection(pool, urgent)
            listens = getattr(pool, "maint_notifications_enabled", None)  # see `call`
            if once or (listens and listens() and await connection.can_read()):
                await connection.disconnect()
            send = _asend_and_read if isinstance(pool, AsyncNode) else _asend_on_idle
            if once:
                replies = await _asend_and_read(connection, commands)
            else:
                replies = await connection.retry.call_with_retry(
                    partial(send, connection, commands), lambda error: connection.disconnect()
                )
        for reply in replies:
            if isinstance(reply, ResponseError) and is_readonly(reply):
                await connection.disconnect()
                await pool.disconnect(inuse_connections=False)
                keeps = False
        if keeps and not getattr(connection, "should_reconnect", bool)():  # see `call`
            is_kept = True
            pool.kept.append(connection)
        return replies
    finally:
        if connection and not is_kept:
            await _arelease(pool, connection)


async def _arelease(pool: Any, connection: Any, *, again: bool = True) -> None:
    try:
        with suppress(KeyError):  # somebody reset the pool in the meantime
            await pool.release(connection)
    except asyncio.CancelledError:
        # The task may have waited for a lock of the pool. Then the connection is still in use.
        if again:
            task = asyncio.create_task(_arelease(pool, connection, again=False))
            _releases.add(task)
            task.add_done_callback(_releases.discard)
        raise


_releases: set["asyncio.Task[None]"] = set()
"""References to the tasks that release connections. An event loop keeps only weak ones."""


async def _asend_on_idle(connection: Any, commands: Sequence[Command]) -> list[Any]:
    try:
        return await _asend_and_read(connection, commands)
    except ConnectionError:
        # The server had closed the idle connection, and the event loop had not noticed.
        return await _asend_and_read(connection, commands)


async def _asend_and_read(connection: Any, commands: Sequence[Command]) -> list[Any]:
    timeout = connection.socket_timeout
    try:
        if not connection.is_connected:
            await connection.connect()
        # redis-py's own limits are a task for each command and a timer for each reply, and its
        # timer ignores that the loop may be busy.
        connection.socket_timeout = None
        return await within(timeout, _aexchange(connection, commands))
    except BaseException as error:
        await connection.disconnect(nowait=True)  # an unread reply would answer the next command
        if isinstance(error, TimeoutError):
            raise RedisTimeoutError("Redis did not respond in time") from error
        if isinstance(error, TypeError | AttributeError):  # another task closed the connection
            raise ConnectionError("The connection was closed during a command") from error
        if isinstance(error, PARSER_ERRORS):
            raise InvalidResponse(UNREADABLE) from None
        raise
    finally:
        connection.socket_timeout = connection.socket_timeout or timeout


async def _aexchange(connection: Any, commands: Sequence[Command]) -> list[Any]:
    replies: list[Any] = []
    await connection.send_packed_command(_pack(commands))
    for _ in commands:
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error.with_traceback(None))  # its frames would keep a lock alive
    return replies


# Connections of a pool


def is_exhausted(error: ConnectionError) -> bool:
    """Return whether all connections of a pool are in use. The server may well be reachable."""
    # redis-py has a class for this error, but not all of its releases and pools use it.
    return isinstance(error, MaxConnectionsError) or str(error).startswith(POOL_EXHAUSTED)


class Loan(deque[Any]):
    """The connection of a pool that a call uses, if any.

    To move it from one deque to another, let `extend()` call `pop()`. That is a single call in C,
    which no interrupt divides, so at any time exactly one of them has the connection. Other
    threads may also append or remove it.
    """

    pool: Any

    slot: "threading.Lock | None" = None
    """The slot of the pool that the call acquired, or tries to acquire."""

    has_unread_reply = False

    has_ended = False
    """Whether a connection that arrives from now on goes back to the pool at once."""

    def take(self, deadline: float | None = None, *, urgent: bool = False) -> None:
        """Take a connection of the pool that is connected.

        Args:
            deadline: When to stop connecting, on the monotonic clock. If Redis has replied within
                `RESPONSIVE_SECONDS`, only the client's own timeouts apply.
            urgent: Whether not to wait if all connections are in use.
        """
        give_up = time.monotonic() + (0 if urgent else POOL_WAIT_SECONDS)
        self.has_unread_reply = False
        while True:
            try:
                if deadline is None or _replied_just_now(self.pool):
                    self._take_within(None)
                else:
                    self._take_within(max(0, deadline - time.monotonic()))
                return
            except ConnectionError as error:
                if not is_exhausted(error) or time.monotonic() > min(give_up, deadline or give_up):
                    raise
            time.sleep(POLL_INTERVAL_SECONDS)

    def _take_within(self, seconds: float | None) -> None:
        """Take a connection by a helper thread if this thread can be interrupted, or with a limit,
        because nothing else limits a handshake or a health check."""
        if seconds is None and not can_be_interrupted():
            try:
                self._take_one(check_health=False)
            except (RedisError, OSError):
                raise
            except BaseException:
                # Even so, another thread can raise an exception in this one. It may have struck
                # during a handshake, and the pool may have taken the connection back.
                _disconnect_idle(self.pool)
                raise
            return

        def take() -> None:
            self._take_one(check_health=seconds is not None)
            if self.has_ended:
                self._put_back()

        if not run_apart(take, seconds):
            raise RedisTimeoutError("Timed out while connecting to Redis")

    def _take_one(self, *, check_health: bool) -> None:
        try:
            connection = self.pool.get_connection(*_COMMAND_NAME)
        except PARSER_ERRORS:
            raise InvalidResponse(UNREADABLE) from None
        try:
            if check_health:
                connection.check_health()
            _discard_unread_reply(self.pool, connection)
        except BaseException:
            connection.disconnect()
            self.pool.release(connection)
            raise
        # Not before. The call may end during the checks, and would put a connection back that the
        # helper thread still uses.
        self.append(connection)

    def give_back(self) -> None:
        """Give the connection back to the pool. If a reply is unread, disconnect it first, or the
        reply would answer the next command."""
        _run_safely(self._put_back)

    def end(self) -> None:
        """End a call that was interrupted while it ended."""
        self.has_ended = True
        if self:
            self.give_back()
        if self.slot:
            with suppress(RuntimeError):
                self.slot.release()

    def _put_back(self) -> None:
        with suppress(IndexError):  # another thread has done it
            connection = self.pop()
            if self.has_unread_reply:
                connection.disconnect()
            self.pool.release(connection)


def _run_safely(function: Callable[[], None]) -> None:
    """Run a function where no interrupt strikes it."""
    if can_be_interrupted():
        run_apart(function)
    else:
        function()


def get_connection(pool: Any) -> Any:
    """Return a connection of a sync pool that is connected."""
    loan = Loan()
    loan.pool = pool
    loan.take()
    return loan.pop()


def _discard_unread_reply(pool: Any, connection: Any) -> None:
    # Since redis-py 7.0, a pool that listens for maintenance notifications hands out connections
    # on which somebody left a reply unread.
    listens = getattr(pool, "maint_notifications_enabled", None)
    if listens and listens() and connection.can_read():
        connection.disconnect()


def _disconnect_idle(pool: Any) -> None:
    if "inuse_connections" in signature(pool.disconnect).parameters:  # redis-py 5 would block
        pool.disconnect(inuse_connections=False)


_last_replies: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def _replied_just_now(pool: Any) -> bool:
    """Return whether to connect without a helper thread, which costs more than the request."""
    is_fresh = time.monotonic() < _last_replies.get(pool, -math.inf) + RESPONSIVE_SECONDS
    return is_fresh and not pool.connection_kwargs.get("health_check_interval")


async def _aget_connection(pool: Any, urgent: bool) -> Any:
    give_up = time.monotonic() + (0 if urgent else POOL_WAIT_SECONDS)
    while True:
        try:
            return await pool.get_connection(*_COMMAND_NAME)
        except ConnectionError as error:
            if not is_exhausted(error) or time.monotonic() > give_up:
                raise
        except (RedisError, OSError, asyncio.CancelledError):
            # redis-py closes the connection after these. So a cancellation, which is common, costs
            # nobody else a connection.
            raise
        except BaseException as error:
            # A signal handler may have raised it during a handshake, and the pool may have taken
            # the connection back with an unread reply: see `helper_threads`.
            with suppress(Exception):
                await pool.disconnect(inuse_connections=False)
            if isinstance(error, PARSER_ERRORS):
                raise InvalidResponse(UNREADABLE) from None
            raise
        await asyncio.sleep(POLL_INTERVAL_SECONDS)


def below_timeout(client: Any, seconds: float) -> float:
    """Return how long the server may let a command wait. After `socket_timeout` the client would
    break the connection."""
    timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    return min(seconds, timeout * SERVER_SHARE_OF_TIMEOUT) if timeout else seconds
