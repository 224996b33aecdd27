"""Clients of several servers that share the keys: a Redis Cluster, or django-redis's shards."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import cached_property
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)

T = TypeVar("T")

REDIRECTS = AskError, TryAgainError, ClusterDownError
"""Replies of a node that does not have a slot, or not all of its keys. `MovedError` is a kind of
`AskError`."""

REFRESH_WAIT_SECONDS = 0.1
"""Seconds in which a Cluster reports its slots, unless the node that is asked does not respond."""

SLOT_MOVE_SECONDS = 5.0
"""Seconds for which the keys of a slot may be on neither of two nodes."""

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.05
"""Seconds between two attempts to follow a redirect. They grow from the second attempt on."""


def is_redirect(reply: Any) -> bool:
    """Return whether to send the command to another node, or to the same one a little later."""
    return isinstance(reply, REDIRECTS) or is_readonly(reply)


def is_readonly(reply: Any) -> bool:
    """Return whether the reply is a replica's refusal to write.

    A replica of a Cluster refuses, and does not redirect, if the client reads from replicas: it
    runs a script up to its first write.
    """
    # redis-py removes the word from the message of an error that has a class of its own. Before
    # Redis 7 the word is part of a script's error, which has no class; Valkey's Cluster has its
    # own wording.
    return isinstance(reply, ReadOnlyError) or (
        isinstance(reply, ResponseError)
        and ("READONLY" in str(reply) or "non local key" in str(reply))
    )


class Nodes:
    """Servers that never move their keys: django-redis's shards."""

    def __init__(self, clients: Sequence[Any], choose: Callable[[str], Any]) -> None:
        self._clients = clients
        self._choose = choose

    @cached_property
    def inboxes(self) -> dict[Any, Any]:
        """The inboxes of those who wait for locks on these servers."""
        return {}

    def clients(self) -> Sequence[Any]:
        """Return a client of each server."""
        return self._clients

    def client_for(self, key: str) -> Any:
        """Return the client of the server that has a key."""
        return self._choose(key)

    def follow(self, redirect: Exception) -> Any:
        """Return the client to use for this command only, after ASKING.

        Return None if `client_for` returns the right client from now on.
        """
        return None

    def refresh(self) -> None:
        """Find out in the background which node has which slots, because a node failed."""


def route(
    nodes: Nodes, commands: Sequence[Any], deadline: float | None
) -> Generator[tuple[float, Any, list[Any]], Any, list[Any]]:
    """Yield seconds to sleep, then a client and commands to send to it. Receive the replies."""
    positions: dict[Any, list[int]] = {}
    node = None
    for position, command in enumerate(commands):
        key = key_of(command)
        if node is None or key:
            node = nodes.client_for(key)
        positions.setdefault(node, []).append(position)
    replies: list[Any] = [None] * len(commands)
    for node, of_node in positions.items():
        received = yield 0, node, [commands[position] for position in of_node]
        for position, reply in zip(of_node, received, strict=True):
            replies[position] = reply
    redirected = [position for position, reply in enumerate(replies) if is_redirect(reply)]
    for position in redirected:
        replies[position] = yield from _followed(
            nodes, commands[position], replies[position], deadline
        )
    if redirected and commands[-1][0] == "WAIT":
        replies[-1] = 0  # the number of replicas of the wrong node
    return replies


def _followed(
    nodes: Nodes, command: Any, reply: Any, deadline: float | None
) -> Generator[tuple[float, Any, list[Any]], Any, Any]:
    """Send a redirected command again until a node executes it, or time is up."""
    pause, give_up = 0.0, time.monotonic() + SLOT_MOVE_SECONDS
    while is_redirect(reply) and time.monotonic() < min(give_up, deadline or give_up):
        if node := nodes.follow(reply):
            _, reply = yield 0, node, [("ASKING",), command]
        else:
            yield pause, None, []  # during which the client may learn of another node
            [reply] = yield 0, nodes.client_for(key_of(command)), [command]
        pause = min(pause * 2 or MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    return reply


def key_of(command: Any) -> str:
    """Return the first key of a command that has one, else an empty string."""
    name, *rest = command
    if name in ("EVALSHA", "EVAL"):
        return str(rest[2]) if rest[1] else ""
    return str(rest[0]) if name == "BLPOP" else ""


class ClusterNodes(Nodes):
    """The primaries of a Cluster, as redis-py's client knows them.

    Redirects are not left to that client: it would follow them for longer than a reply may take,
    and the async client closes connections that others use in the meantime.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._moved: dict[int, tuple[str, int]] = {}
        self._refreshing: threading.Thread | None = None

    def clients(self) -> Sequence[Any]:
        nodes = with_connection_errors(self._client.get_primaries)
        return [self._client_of(node) for node in nodes]

    def client_for(self, key: str) -> Any:
        moved = self._moved.get(self._client.keyslot(key))
        node = moved and self._client.get_node(*moved)
        if not node:
            node = with_connection_errors(lambda: self._client.get_node_from_key(key))
        return self._client_of(node)

    def follow(self, redirect: Exception) -> Any:
        if isinstance(redirect, TryAgainError):
            return None
        if not isinstance(redirect, AskError):  # a replica, or a node without slots
            self.refresh()
            # redis-py 5 and 6 close connections during a refresh, also those that others use.
            if self._refreshing:
                self._refreshing.join(REFRESH_WAIT_SECONDS)
            return None
        address = redirect.host, redirect.port
        node = self._client.get_node(*address)
        if node is None:  # the client does not know it yet
            self.refresh()
        elif isinstance(redirect, MovedError):
            self._moved[redirect.slot_id] = address
        else:
            return self._client_of(node)
        return None

    def refresh(self) -> None:
        # In a thread, because the node that is asked first may be the one that does not respond.
        if not (self._refreshing and self._refreshing.is_alive()):
            self._refreshing = threading.Thread(target=self._read_slots, daemon=True)
            self._refreshing.start()

    def _read_slots(self) -> None:
        with suppress(Exception):
            self._client.nodes_manager.initialize()
            self._moved.clear()

    def _client_of(self, node: Any) -> Any:
        return self._client.get_redis_connection(node)


class AsyncNode:
    """A node of redis-py's async Cluster client, with the methods of a client and of its pool."""

    def __init__(self, node: Any) -> None:
        self.node = node
        # Before redis-py 6 a node has no public method to take a connection back. Each request
        # then has a connection of its own.
        self._shares_connections = hasattr(node, "release")

    @property
    def connection_pool(self) -> "AsyncNode":
        return self

    @property
    def max_connections(self) -> int:
        return int(self.node.max_connections)

    @property
    def connection_kwargs(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self.node.connection_kwargs
        return options

    async def get_connection(self, *command_name: str) -> Any:
        """Return a connection, which connects when it is first used."""
        if self._shares_connections:
            return self.node.acquire_connection()
        return self.node.connection_class(**self.connection_kwargs)

    async def release(self, connection: Any) -> None:
        if self._shares_connections:
            self.node.release(connection)
        else:
            await connection.disconnect(nowait=True)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        if inuse_connections:
            await self.node.disconnect()


class AsyncClusterNodes(ClusterNodes):
    """Async version of `ClusterNodes`."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._nodes: dict[str, AsyncNode] = {}
        self._refresh_task: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Have the client read the slots, once. Raises redis-py's `ConnectionError`."""
        try:
            await self._client.initialize()
        except RedisClusterException as error:
            raise ConnectionError(str(error)) from error

    async def aclose(self) -> None:
        await self._client.aclose()
        # The client closes no node if an error made it forget the slots, and never the connections
        # in use of a node that has left the Cluster.
        used = [each.node for each in self._nodes.values()]
        for node in [*self._client.nodes_manager.nodes_cache.values(), *used]:
            with suppress(Exception):
                await node.disconnect()

    def refresh(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._aread_slots(), context=Context())

    async def _aread_slots(self) -> None:
        with suppress(Exception):
            await self._client.nodes_manager.initialize()
            self._moved.clear()

    def _client_of(self, node: Any) -> AsyncNode:
        # redis-py 7 makes other nodes for the slots at each refresh, and closes none.
        node = self._client.get_node(node_name=node.name) or node
        known = self._nodes.get(node.name)
        if known is None or known.node is not node:
            known = self._nodes[node.name] = AsyncNode(node)
        return known


def with_connection_errors(ask: Callable[[], T]) -> T:
    """Return what `ask` returns, and raise `ConnectionError` if a Cluster client knows no node.

    redis-py's `RedisClusterException` is not a subclass of `RedisError`.
    """
    try:
        return ask()
    except RedisClusterException as error:
        raise ConnectionError(str(error)) from error


def nodes_of(client: Any) -> Any:
    """Return `Nodes` for redis-py's client of a Cluster, and any other client as it is."""
    if not hasattr(client, "get_node_from_key"):
        return client
    is_async = iscoroutinefunction(client.execute_command)
    return AsyncClusterNodes(client) if is_async else ClusterNodes(client)
