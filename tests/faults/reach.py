"""How clients reach a deployment that is more than one server. Asked for by their paths, these
functions run in a client's process, before it uses any lock."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import redis.asyncio.cluster
import redis.cluster
from django.test import override_settings

from .client import Client, use_caches
from .crew import CORE, PREFIX
from .crew import caches as of_one

Address = tuple[str, int]

IN_TIME = {"socket_timeout": 1.5, "socket_connect_timeout": 0.5}
"""Seconds. Without them, a client waits for ever for a server that stands still."""


def by_sentinel(
    client: Client,
    name: str,
    sentinels: Sequence[Address],
    through: str = CORE,
    ways: Sequence[tuple[Address, Address]] = (),
) -> None:
    """Have the master's address from Sentinels. `through` is the backend; `ways` are the
    addresses by which this client alone reaches those that the Sentinels tell."""
    from redis.sentinel import Sentinel

    reached = {tuple(told): tuple(way) for told, way in ways}
    addresses = [tuple(each) for each in sentinels]

    class WithWays(Sentinel):
        def discover_master(self, service_name: str) -> Any:
            told = super().discover_master(service_name)
            return reached.get(told, told)

    of_core = IN_TIME | {
        "pool_class": "redis.sentinel.SentinelConnectionPool",
        "service_name": name,
        "sentinel_manager": (WithWays if ways else Sentinel)(addresses, **IN_TIME),
    }
    of_django_redis = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": addresses,
        "SENTINEL_KWARGS": IN_TIME,
        "CONNECTION_POOL_KWARGS": IN_TIME,
    }
    options = of_core if through == CORE else of_django_redis
    entry = {"BACKEND": through, "KEY_PREFIX": PREFIX, "LOCATION": f"redis://{name}/0"}
    use_caches({"default": entry | {"OPTIONS": options}})


_nodes: list[Address] = []


def by_cluster(client: Client, nodes: Sequence[Address]) -> None:
    """Have a client of a Cluster, as ``REDISLOCK_CLIENT`` makes it."""
    use_caches(of_one("redis://"))  # whose prefix it has
    use_cluster(nodes)


def use_cluster(nodes: Sequence[Address]) -> None:
    """Have locks of this process live on that Cluster from now on."""
    _nodes[:] = [tuple(each) for each in nodes]
    override_settings(
        REDISLOCK_CLIENT=f"{__name__}.cluster_client",
        REDISLOCK_ASYNC_CLIENT=f"{__name__}.async_cluster_client",
    ).enable()


def _cluster_client(module: Any) -> Any:
    nodes = [module.ClusterNode(*each) for each in _nodes]
    return module.RedisCluster(startup_nodes=nodes, **IN_TIME)


cluster_client = partial(_cluster_client, redis.cluster)
async_cluster_client = partial(_cluster_client, redis.asyncio.cluster)
