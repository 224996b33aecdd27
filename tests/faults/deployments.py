"""Orders with which a client uses a deployment of several servers, before it uses any lock."""

from collections.abc import Sequence

from django.test import override_settings

from tests.full.topologies.topologies import cluster_client

from .client import Client, use_caches
from .crew import CORE, PREFIX, caches

Address = tuple[str, int]

TIMEOUTS = {"socket_timeout": 1.5, "socket_connect_timeout": 0.5}
"""In seconds. Without them, a client waits indefinitely for a server that does not respond."""


def by_sentinel(client: Client, name: str, sentinels: Sequence[Address], through: str) -> None:
    """Read the master's address from Sentinels. `through` is the backend."""
    from redis.sentinel import Sentinel

    addresses = [tuple(each) for each in sentinels]
    of_core = TIMEOUTS | {
        "pool_class": "redis.sentinel.SentinelConnectionPool",
        "service_name": name,
        "sentinel_manager": Sentinel(addresses, **TIMEOUTS),
    }
    of_django_redis = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": addresses,
        "SENTINEL_KWARGS": TIMEOUTS,
        "CONNECTION_POOL_KWARGS": TIMEOUTS,
    }
    options = of_core if through == CORE else of_django_redis
    entry = {"BACKEND": through, "KEY_PREFIX": PREFIX, "LOCATION": f"redis://{name}/0"}
    use_caches({"default": entry | {"OPTIONS": options}})


def by_cluster(client: Client, nodes: Sequence[Address]) -> None:
    """Use a Cluster, with a client that ``REDISLOCK_CLIENT`` makes."""
    use_caches(caches("redis://"))  # for the key prefix
    override_settings(**cluster_client([*nodes], **TIMEOUTS)).enable()
