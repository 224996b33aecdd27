"""How to connect to the server of a client, by connections that only this package uses.

Neither the pool of the client nor another pool of redis-py is used, for three reasons. The rest of
the program may use up a pool that it shares with the locks, and then no holder can release. If a
signal handler raises an exception during a handshake, redis-py 5 to 8 give the connection back
with an unread reply, so that each later command reads the reply to the one before it. And a pool
checks a connection each time, which takes a fifth of the processor time of an uncontended cycle.
"""

import math
import sys
from collections.abc import Callable
from copy import copy
from inspect import iscoroutinefunction
from typing import Any
from weakref import ref

from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from .pools import is_made_by_redis_py

POOL_OPTIONS = "maint", "orig_", "oss_cluster"
"""Options that a pool adds to the options of its connections, for the maintenance notifications of
redis-py 7 and later. A connection outside a pool cannot follow them."""


class Endpoint:
    """The server of a client.

    Args:
        client: A client of redis-py, or a node of its async Cluster client.
    """

    def __init__(self, client: Any) -> None:
        pool: Any = getattr(client, "connection_pool", client)
        is_pool = hasattr(pool, "make_connection")
        # Not strong: the connections belong to the client, and end with its pool.
        self._pool: Callable[[], Any] = ref(pool) if is_pool else _no_pool
        self._connection_class = None
        if not is_pool or is_made_by_redis_py(pool):
            self._connection_class = pool.connection_class
            self._options = {
                name: value
                for name, value in pool.connection_kwargs.items()
                if not name.startswith(POOL_OPTIONS)
            }
        sample = self._make()
        self._unused = [sample]
        is_async = iscoroutinefunction(sample.connect)
        self._no_retry = AsyncRetry(NoBackoff(), 0) if is_async else Retry(NoBackoff(), 0)

        self.retry: Any = sample.retry
        """How the client repeats a command after an error."""

        self.socket_timeout: float | None = sample.socket_timeout

        self.max_idle: float = sample.health_check_interval or math.inf
        """Seconds after which an unused connection is replaced. That is a better health check
        than redis-py's, which asks a server that may have forgotten the connection."""

        self.max_connections = int(pool.max_connections)

    def new_connection(self) -> Any:
        """Return a connection of redis-py that is not connected. It never repeats a command."""
        connection = self._unused.pop() if self._unused else self._make()
        connection.retry = self._no_retry
        return connection

    @property
    def primary(self) -> object:
        """The primary that Sentinels have found last, or None. An older connection may lead to
        another server."""
        return getattr(self._pool(), "master_address", None)

    def _make(self) -> Any:
        if self._connection_class is None:  # the pool of somebody else knows how
            # A copy, because a pool counts what it has made, and makes no more than its limit.
            pool = copy(self._pool())
            pool.max_connections = sys.maxsize
            return pool.make_connection()
        return self._connection_class(**self._options)


def _no_pool() -> None:
    return None
