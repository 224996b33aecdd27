"""Find the primary of a Redis Cluster that stores the keys with one prefix, and follow it.

All keys with a prefix are in one slot. redis-py's client knows which node has it. Redirects are
not left to that client: it would follow them for longer than a reply may take.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from contextvars import Context
from inspect import iscoroutinefunction
from typing import Any, TypeAlias, TypeVar

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

Step: TypeAlias = tuple[float, Any, Sequence[Any]]
"""Seconds to sleep, then a node and the commands to send to it."""


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


class SlotOwner:
    """The primary of a Cluster that has the slot of a key.

    Args:
        cluster: redis-py's client of the Cluster.
        key: The key.
    """

    def __init__(self, cluster: Any, key: str) -> None:
        self.cluster = cluster
        self._key = key
        self._moved_to: tuple[str, int] | None = None
        self._refreshing: threading.Thread | None = None

    def node(self) -> Any:
        """Return the client of the primary.

        Raises:
            redis.exceptions.ConnectionError: The Cluster's client knows no primary.
        """
        node = self._moved_to and self.cluster.get_node(*self._moved_to)
        if not node:
            node = with_connection_errors(lambda: self.cluster.get_node_from_key(self._key))
        return self._client_of(node)

    def follow(self, redirect: Exception) -> Any:
        """Return the node to use for this command only, after ASKING.

        Return None if `node()` returns the right one from now on, or a little later.
        """
        if isinstance(redirect, TryAgainError):
            return None
        if not isinstance(redirect, AskError):  # a replica, or a node without slots
            self.refresh()
            self._await_refresh()
            return None
        address = redirect.host, redirect.port
        node = self.cluster.get_node(*address)
        if node is None:  # the client does not know it yet
            self.refresh()
        elif isinstance(redirect, MovedError):
            self._moved_to = address
        else:
            return self._client_of(node)
        return None

    def refresh(self) -> None:
        """Find out in the background which node has which slots, because a node failed."""
        # In a thread, because the node that is asked first may be the one that does not respond.
        if not (self._refreshing and self._refreshing.is_alive()):
            refreshing = threading.Thread(target=self._read_slots, daemon=True)
            with suppress(RuntimeError):  # the interpreter is shutting down
                refreshing.start()
                self._refreshing = refreshing  # not before, because other threads join it

    def _await_refresh(self) -> None:
        # redis-py 5 and 6 close connections during a refresh, also those that others use.
        refreshing = self._refreshing
        if refreshing:
            refreshing.join(REFRESH_WAIT_SECONDS)

    def _read_slots(self) -> None:
        with suppress(Exception):
            self.cluster.nodes_manager.initialize()
            self._moved_to = None

    def _client_of(self, node: Any) -> Any:
        return self.cluster.get_redis_connection(node)


class AsyncSlotOwner(SlotOwner):
    """Async version of `SlotOwner`. A node is not a client, but has the options to connect."""

    def __init__(self, cluster: Any, key: str) -> None:
        super().__init__(cluster, key)
        self._refresh_task: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Have the client read the slots, once. Raises redis-py's `ConnectionError`."""
        try:
            await self.cluster.initialize()
        except RedisClusterException as error:
            raise ConnectionError(str(error)) from error

    async def aclose(self) -> None:
        """Close the connections of redis-py's client, by which it reads the slots."""
        await self.cluster.aclose()
        # The client closes no node if an error made it forget the slots.
        for node in [*self.cluster.nodes_manager.nodes_cache.values()]:
            with suppress(Exception):
                await node.disconnect()

    def refresh(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._aread_slots(), context=Context())

    def _await_refresh(self) -> None:
        """The pause before the next attempt gives the task time."""

    async def _aread_slots(self) -> None:
        with suppress(Exception):
            await self.cluster.nodes_manager.initialize()
            self._moved_to = None

    def _client_of(self, node: Any) -> Any:
        return node


def follow_redirects(
    owner: SlotOwner, commands: Sequence[Any], deadline: float | None
) -> Generator[Step, list[Any], list[Any]]:
    """Send commands to the primary, and those that it redirects again, until time is up.

    It yields what to send, receives the replies, and returns the replies to all commands.
    """
    give_up = time.monotonic() + SLOT_MOVE_SECONDS
    if deadline is not None:
        give_up = min(give_up, deadline)
    replies = yield 0, owner.node(), commands
    pause = 0.0
    while True:
        redirected = [place for place, reply in enumerate(replies) if is_redirect(reply)]
        if not redirected or time.monotonic() >= give_up:
            return replies
        again = [commands[place] for place in redirected]
        other = owner.follow(replies[redirected[0]])
        if other:
            asked = [each for command in again for each in (("ASKING",), command)]
            received = (yield 0, other, asked)[1::2]
        else:
            received = yield pause, owner.node(), again
        for place, reply in zip(redirected, received, strict=True):
            replies[place] = reply
        if commands[-1][0] == "WAIT":
            replies[-1] = 0  # the number of replicas of the wrong node
        pause = min(pause * 2 or MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)


def with_connection_errors(ask: Callable[[], T]) -> T:
    """Return what `ask` returns, and raise `ConnectionError` if a Cluster client knows no node.

    redis-py's `RedisClusterException` is not a subclass of `RedisError`.
    """
    try:
        return ask()
    except RedisClusterException as error:
        raise ConnectionError(str(error)) from error


def is_cluster(client: Any) -> bool:
    """Return whether a client is redis-py's client of a Cluster."""
    return hasattr(client, "get_node_from_key")


def shared_by_locks(client: Any) -> Any:
    """Return the object by which all locks of a client find the same connections and inboxes: its
    pool, because many clients can share one, or the client of a Cluster."""
    if isinstance(client, SlotOwner):
        return client.cluster
    return getattr(client, "connection_pool", client)


def slot_owner(client: Any, key: str) -> Any:
    """Return the `SlotOwner` of a key for redis-py's client of a Cluster, and any other client as
    it is."""
    if not is_cluster(client):
        return client
    is_async = iscoroutinefunction(client.execute_command)
    return AsyncSlotOwner(client, key) if is_async else SlotOwner(client, key)
