"""Send commands in one round trip and read their replies, in sync and async code.

A thread takes a connection, sends, reads, and puts the connection back (`thread_transport`). The
tasks of an event loop share one connection: they send as many requests as they like, and the
replies come in order (`loop_transport`). Both use connections of their own, and no pool of
redis-py: `backends.endpoints` says why. On a Cluster, both follow its redirects.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import ConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..backends import AsyncClient, Client, SlotOwner
from ..backends.cluster import follow_redirects, shared_by_locks
from .loop_transport import LoopLink
from .operations import Command
from .patches import check_patches, seen
from .thread_transport import ThreadLink

_thread_links: WeakKeyDictionary[Any, ThreadLink] = WeakKeyDictionary()
"""The connections that all threads share. The key is from `shared_by_locks()`."""

_loop_links: WeakKeyDictionary[Any, LoopLink] = WeakKeyDictionary()
"""The connections that all tasks share. The key is from `shared_by_locks()`."""

BLOCKING_COMMANDS = ("BLPOP", "WAIT")
"""Commands for whose reply the server lets a connection wait."""


def call(
    client: Client,
    commands: Sequence[Command],
    limit: float | None = None,
    *,
    once: bool = False,
    link: ThreadLink | None = None,
) -> list[Any]:
    """Send commands and return their replies.

    Args:
        client: A client of redis-py, or the `SlotOwner` of a Cluster.
        commands: The commands.
        limit: Seconds to wait for a connection, to connect, and to wait for the replies. None
            leaves that, and whether to try again, to the options of the client.
        once: Whether the commands must not be sent again if the connection breaks.
        link: The connections to use. None means those that all callers share.

    Returns:
        A reply for each command: bytes, integers, lists, or an error that Redis replied with.

    Raises:
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: Redis did not reply.
        ImproperlyConfigured: gevent has patched this process in part, or too late.
    """
    if seen.get_ident is not threading.get_ident or seen.socket_class is not socket.socket:
        check_patches()
    if link is None:
        owner = shared_by_locks(client)
        link = _thread_links.get(owner) or _thread_links.setdefault(owner, ThreadLink())
    deadline = None if limit is None else time.monotonic() + limit
    if not isinstance(client, SlotOwner):
        return link.connections(client).call(commands, deadline, once=once)
    steps = follow_redirects(client, commands, deadline)
    try:
        pause, node, sent = next(steps)
        while True:
            time.sleep(pause)
            replies = link.connections(node).call(sent, deadline, once=once)
            pause, node, sent = steps.send(replies)
    except StopIteration as end:
        followed: list[Any] = end.value
        return followed
    except (ConnectionError, RedisTimeoutError):
        client.refresh()
        raise


async def acall(
    client: AsyncClient,
    commands: Sequence[Command],
    limit: float | None = None,
    *,
    once: bool = False,
    urgent: bool = False,
    link: LoopLink | None = None,
) -> list[Any]:
    """Async version of `call()`.

    If the task is cancelled during an urgent call, it still waits for the replies, for
    `CLEANUP_TIMEOUT_SECONDS`. Then it raises `CancelledDuringCall` with them.
    """
    if link is not None:
        return await _acall_on_link(client, commands, limit, once, urgent, link)
    owner = shared_by_locks(client)
    link = _loop_links.get(owner)
    if link is None or link.loop is not asyncio.get_running_loop():
        link = _loop_links[owner] = LoopLink()
        await link.end_with_loop()
    if not once and commands[-1][0] not in BLOCKING_COMMANDS:
        return await _acall_on_link(client, commands, limit, once, urgent, link)
    # On the connection that all tasks share, the others would wait for this call. And if they
    # broke the connection, commands that cannot be sent again would be lost.
    spare = link.spares.pop() if link.spares and not once else LoopLink()
    try:
        return await _acall_on_link(client, commands, limit, once, urgent, spare)
    finally:
        if once:
            spare.close()
        else:
            link.spares.append(spare)


async def _acall_on_link(
    client: AsyncClient,
    commands: Sequence[Command],
    limit: float | None,
    once: bool,
    urgent: bool,
    link: LoopLink,
) -> list[Any]:
    if not isinstance(client, SlotOwner):
        return await link.connection(client).call(commands, limit, once=once, urgent=urgent)
    deadline = None if limit is None else time.monotonic() + limit
    steps = follow_redirects(client, commands, deadline)
    try:
        pause, node, sent = next(steps)
        while True:
            if pause:
                await asyncio.sleep(pause)
            left = None if deadline is None else deadline - time.monotonic()
            connection = link.connection(node)
            replies = await connection.call(sent, left, once=once, urgent=urgent)
            pause, node, sent = steps.send(replies)
    except StopIteration as end:
        followed: list[Any] = end.value
        return followed
    except (ConnectionError, RedisTimeoutError):
        client.refresh()
        raise
