"""The servers of each topology, and Django's settings that store locks on them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from tests.servers import Certificates, Cluster, Node, Sentinels

from .acl import make_user

CORE = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO_VALKEY = "django_valkey.cache.ValkeyCache"

Settings = dict[str, Any]


@dataclass(frozen=True)
class Topology:
    settings: Settings

    masters: Callable[[], list[Node]]
    """The nodes that may keep the locks now."""

    database: int = 0

    cluster: Cluster | None = None


PATIENT = {"cluster_node_timeout": 10_000}
"""In milliseconds. Long enough that nodes on a busy machine do not count as down."""


def caches(backend: str, url: str | list[str], **options: Any) -> Settings:
    entry = {"BACKEND": backend, "LOCATION": url, "KEY_PREFIX": "topologies", "OPTIONS": options}
    return {"CACHES": {"default": entry}}


def cluster_client(startup: list[tuple[str, int]], **options: Any) -> Settings:
    """A client of a Cluster, which no cache backend supports."""
    return {
        "REDISLOCK_CLIENT": "tests.full.topologies.cluster_clients.make",
        "REDISLOCK_ASYNC_CLIENT": "tests.full.topologies.cluster_clients.make_async",
        "TESTS_CLUSTER": {"startup": startup, "options": options},
    }


@contextmanager
def valkey() -> Iterator[Topology]:
    with Node() as node:
        yield Topology(caches(DJANGO_VALKEY, f"valkey://127.0.0.1:{node.port}/0"), lambda: [node])


@contextmanager
def unix() -> Iterator[Topology]:
    with Node(unix=True) as node:
        yield Topology(caches(DJANGO_REDIS, node.url), lambda: [node])


@contextmanager
def tls() -> Iterator[Topology]:
    """One server that requires client certificates, which only Debian's Redis supports."""
    certificates = Certificates()
    with Node(tls=certificates, tls_auth_clients="yes") as node:
        yield Topology(caches(CORE, node.url, protocol=3, **certificates.shown), lambda: [node])


@contextmanager
def acl() -> Iterator[Topology]:
    """A user with the fewest rights, in a database other than the first."""
    with Node("redis-6.2") as node:
        user = "{username}:{password}".format(**make_user(node))
        url = f"redis://{user}@127.0.0.1:{node.port}/1"
        yield Topology(caches(CORE, url, protocol=2), lambda: [node], database=1)


@contextmanager
def sentinels(backend: str) -> Iterator[Topology]:
    with Sentinels(down_after=PATIENT["cluster_node_timeout"]) as running:
        options = {
            CORE: {
                "pool_class": "redis.sentinel.SentinelConnectionPool",
                "sentinel_manager": redis.Sentinel(running.addresses),
                "service_name": running.name,
            },
            DJANGO_REDIS: {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": running.addresses,
            },
        }
        url = f"redis://{running.name}/0"
        yield Topology(caches(backend, url, **options[backend]), lambda: [running.master])


@contextmanager
def shards() -> Iterator[Topology]:
    with Node() as one, Node() as two:
        nodes = [one, two]
        urls = [node.url for node in nodes]
        client = "django_redis.client.ShardClient"
        yield Topology(caches(DJANGO_REDIS, urls, CLIENT_CLASS=client), lambda: nodes)


@contextmanager
def cluster() -> Iterator[Topology]:
    """A Cluster, for a user with the fewest rights."""
    with Cluster(**PATIENT) as running:
        user = make_user(*running.nodes, of_cluster=True)
        yield Topology(cluster_client(running.startup, **user), running.owners, cluster=running)


TOPOLOGIES: dict[str, Callable[[], AbstractContextManager[Topology]]] = {
    "tls-redis-7.0": tls,
    "acl-redis-6.2": acl,
    "sentinels": partial(sentinels, CORE),
    "django-redis-unix": unix,
    "django-redis-sentinels": partial(sentinels, DJANGO_REDIS),
    "django-redis-shards": shards,
    "django-valkey": valkey,
    "cluster-acl": cluster,
}
"""One of each kind: backends, servers, transports, Sentinels, Clusters, and users."""
