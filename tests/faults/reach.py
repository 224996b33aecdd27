"""How clients reach a deployment that is more than one server. Asked for by their paths, these
functions run in a client's process, before it uses any lock."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.test import override_settings

from .client import Client
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
    options = _of_core(name, sentinels, ways) if through == CORE else _of_django_redis(sentinels)
    entry = {"BACKEND": through, "KEY_PREFIX": PREFIX, "LOCATION": f"redis://{name}/0"}
    _use({"default": entry | {"OPTIONS": options}})


def _of_core(
    name: str, sentinels: Sequence[Address], ways: Sequence[tuple[Address, Address]]
) -> dict[str, Any]:
    return IN_TIME | {
        "pool_class": "redis.sentinel.SentinelConnectionPool",
        "service_name": name,
        "sentinel_manager": _sentinel_of(
            {tuple(told): tuple(way) for told, way in ways},
            [tuple(each) for each in sentinels],
        ),
    }


def _sentinel_of(ways: Mapping[Any, Any], sentinels: Sequence[Any]) -> Any:
    from redis.sentinel import Sentinel

    class WithWays(Sentinel):
        def discover_master(self, service_name: str) -> Any:
            told = super().discover_master(service_name)
            return ways.get(told, told)

    return (WithWays if ways else Sentinel)(sentinels, **IN_TIME)


def _of_django_redis(sentinels: Sequence[Address]) -> dict[str, Any]:
    return {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": [tuple(each) for each in sentinels],
        "SENTINEL_KWARGS": IN_TIME,
        "CONNECTION_POOL_KWARGS": IN_TIME,
    }


_nodes: list[Address] = []


def by_cluster(client: Client, nodes: Sequence[Address]) -> None:
    """Have a client of a Cluster, as ``REDISLOCK_CLIENT`` makes it."""
    _use(of_one("redis://"))  # whose prefix it has
    use_cluster(nodes)


def use_cluster(nodes: Sequence[Address]) -> None:
    """Have locks of this process live on that Cluster from now on."""
    _nodes[:] = [tuple(each) for each in nodes]
    override_settings(
        REDISLOCK_CLIENT=f"{__name__}.cluster_client",
        REDISLOCK_ASYNC_CLIENT=f"{__name__}.async_cluster_client",
    ).enable()


def cluster_client() -> Any:
    from redis.cluster import ClusterNode, RedisCluster

    return RedisCluster(startup_nodes=[ClusterNode(*each) for each in _nodes], **IN_TIME)


def async_cluster_client() -> Any:
    from redis.asyncio.cluster import ClusterNode, RedisCluster

    return RedisCluster(startup_nodes=[ClusterNode(*each) for each in _nodes], **IN_TIME)


def _use(aliases: Mapping[str, Any]) -> None:
    settings.CACHES = dict(aliases)
    caches.settings = caches.configure_settings(None)
