"""Several servers that share the buckets: which of them keeps a key, and what to do when that
is no longer true."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from inspect import iscoroutinefunction
from typing import Any

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

REDIRECTIONS = AskError, TryAgainError, ClusterDownError
"""What a node answers that does not keep a slot, or not all of it. MOVED is an ASK to redis-py."""

MOMENT = 0.1
"""Seconds in which a Cluster surely has told of its slots, unless the node that is asked hangs."""


def is_redirection(answer: Any) -> bool:
    """Whether another node is to be asked, or the same one a little later."""
    return isinstance(answer, REDIRECTIONS) or is_of_replica(answer)


def is_of_replica(answer: Any) -> bool:
    """Whether a replica refused to write. One of a Cluster does so, and does not redirect, where a
    client reads from replicas too: it runs the script up to there."""
    # Of an error that has a class redis-py leaves out the word. Before Redis 7 it is inside of a
    # script's error, which has none; Valkey's Cluster has another word.
    return isinstance(answer, ReadOnlyError) or (
        isinstance(answer, ResponseError)
        and ("READONLY" in str(answer) or "non local key" in str(answer))
    )


class Nodes:
    """Servers that never exchange their keys: django-redis's shards."""

    def __init__(self, every: Sequence[Any], choose: Callable[[str], Any]) -> None:
        self._every = every
        self._choose = choose

    def every(self) -> Sequence[Any]:
        """A client for each of them."""
        return self._every

    def at(self, key: str) -> Any:
        """The client of the one that keeps a key, in the colour of this object."""
        return self._choose(key)

    def redirected(self, answer: Exception) -> Any:
        """The client of the one to be asked this once, after ASKING, if a redirection says so;
        else None, and `at` knows what there was to learn from it."""
        return None

    def look_again(self) -> None:
        """One of them failed: see whether another has taken over."""


class ClusterNodes(Nodes):
    """The primaries of a Cluster, as redis-py's client of it knows them.

    Redirections are not left to the client: it would follow them for longer than an answer may
    take, and the one of asyncio closes the connections of everybody else meanwhile.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._moved: dict[int, tuple[str, int]] = {}
        self._looker: threading.Thread | None = None

    def every(self) -> Sequence[Any]:
        return [self._client_of(node) for node in known(self._client.get_primaries)]

    def at(self, key: str) -> Any:
        moved = self._moved.get(self._client.keyslot(key))
        node = moved and self._client.get_node(*moved)
        return self._client_of(node or known(lambda: self._client.get_node_from_key(key)))

    def redirected(self, answer: Exception) -> Any:
        if isinstance(answer, TryAgainError):
            return None
        if not isinstance(answer, AskError):  # a replica; or one that keeps no slot any more
            self.look_again()
            self._give_it_time()
            return None
        address = answer.host, answer.port
        node = self._client.get_node(*address)
        if node is None:  # the client does not know it yet
            self.look_again()
        elif isinstance(answer, MovedError):
            self._moved[answer.slot_id] = address
        else:
            return self._client_of(node)
        return None

    def look_again(self) -> None:
        # In a thread: the node that is asked first may be the very one that hangs.
        if not (self._looker and self._looker.is_alive()):
            self._looker = threading.Thread(target=self._look, daemon=True)
            self._looker.start()

    def _give_it_time(self) -> None:
        # redis-py 5 and 6 close connections as they look, also those that others use.
        if self._looker:
            self._looker.join(MOMENT)

    def _look(self) -> None:
        with suppress(Exception):
            self._client.nodes_manager.initialize()
            self._moved.clear()

    def _client_of(self, node: Any) -> Any:
        return self._client.get_redis_connection(node)


class AsyncNode:
    """A node of a Cluster, as redis-py's client of asyncio knows it: it is its own pool."""

    def __init__(self, node: Any) -> None:
        self.node = node

    @property
    def connection_pool(self) -> "AsyncNode":
        return self

    @property
    def max_connections(self) -> int:
        return int(self.node.max_connections)

    @property
    def connection_kwargs(self) -> Mapping[str, Any]:
        told: Mapping[str, Any] = self.node.connection_kwargs
        return told

    def take(self) -> Any:
        """One of its connections, which may not be connected yet."""
        return self.node.acquire_connection()

    def give_back(self, connection: Any) -> None:
        # Before redis-py 6 it has no method for it.
        getattr(self.node, "release", self.node._free.append)(connection)


class AsyncClusterNodes(ClusterNodes):
    """The same of its client of asyncio."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._nodes: dict[str, AsyncNode] = {}
        self._looking: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Let the client know the Cluster. Raises redis-py's `ConnectionError`."""
        if not getattr(self._client, "_initialize", True):
            return
        # In a task of its own: redis-py 6 and 7 lose the connection of who is cancelled meanwhile.
        if self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self._begin(), context=Context())
            self._beginning.add_done_callback(_heard)
        await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        try:
            await self._client.initialize()
        except RedisClusterException as error:
            raise ConnectionError(str(error)) from error

    async def aclose(self) -> None:
        await self._client.aclose()
        # It closes none where an error made it want to know the Cluster anew; nor what was in use
        # of a node that has left.
        used = [each.node for each in self._nodes.values()]
        for node in [*self._client.nodes_manager.nodes_cache.values(), *used]:
            with suppress(Exception):
                await node.disconnect()

    def look_again(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_in_task(), context=Context())

    async def _look_in_task(self) -> None:
        with suppress(Exception):
            await self._client.nodes_manager.initialize()
            self._moved.clear()

    def _client_of(self, node: Any) -> AsyncNode:
        # That of redis-py 7 has others for the slots each time that it looks, and closes none.
        node = self._client.get_node(node_name=node.name) or node
        found = self._nodes.get(node.name)
        if found is None or found.node is not node:
            found = self._nodes[node.name] = AsyncNode(node)
        return found


def _heard(task: asyncio.Task[None]) -> None:
    """An error is whose it was that waited, and may have been cancelled."""
    if not task.cancelled():
        task.exception()


def known(ask: Callable[[], Any]) -> Any:
    """What that answers, where a Cluster's client may not know its nodes."""
    try:
        return ask()
    except RedisClusterException as error:  # which is none of redis-py's RedisError
        raise ConnectionError(str(error)) from error


def nodes_of(client: Any) -> Any:
    """What the engine talks to, for a client of redis-py: `Nodes`, or the client itself."""
    if not hasattr(client, "get_node_from_key"):
        return client
    of_asyncio = iscoroutinefunction(client.execute_command)
    return AsyncClusterNodes(client) if of_asyncio else ClusterNodes(client)
