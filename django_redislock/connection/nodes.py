"""Several servers that share the buckets: which of them keeps a key, and what to do when that
is no longer true."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    ConnectionError,
    RedisClusterException,
    TryAgainError,
)

REDIRECTIONS = AskError, TryAgainError, ClusterDownError
"""What a node answers that does not keep a slot, or not all of it. MOVED is an ASK to redis-py."""


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

    def follow(self, command: Sequence[Any], answer: Exception) -> Any:
        """What a command that was answered by a redirection is answered where that leads."""
        raise answer

    def look_again(self) -> None:
        """One of them failed: see whether another has taken over."""


class ClusterNodes(Nodes):
    """The primaries of a Cluster, as redis-py's client of it knows them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._looker: threading.Thread | None = None

    def every(self) -> Sequence[Any]:
        primaries = known(self._client.get_primaries)
        return [self._client.get_redis_connection(node) for node in primaries]

    def at(self, key: str) -> Any:
        node = known(lambda: self._client.get_node_from_key(key))
        return self._client.get_redis_connection(node)

    def follow(self, command: Sequence[Any], answer: Exception) -> Any:
        """Raises `TryAgainError` or another `ClusterError` where it leads nowhere yet."""
        try:
            return known(lambda: self._client.execute_command(*command))
        except ClusterError as error:
            # What redis-py says when it was redirected too often.
            raise TryAgainError(str(error)) from error

    def look_again(self) -> None:
        # In a thread: the node that is asked first may be the very one that hangs.
        if not (self._looker and self._looker.is_alive()):
            self._looker = threading.Thread(target=self._look, daemon=True)
            self._looker.start()

    def _look(self) -> None:
        with suppress(Exception):
            self._client.nodes_manager.initialize()


def known(ask: Callable[[], Any]) -> Any:
    """What that answers, where a Cluster's client may not know its nodes."""
    try:
        return ask()
    except RedisClusterException as error:  # which is none of redis-py's RedisError
        raise ConnectionError(str(error)) from error


def nodes_of(client: Any) -> Any:
    """What the engine talks to, for a client of redis-py: `Nodes`, or the client itself."""
    return ClusterNodes(client) if hasattr(client, "get_redis_connection") else client
