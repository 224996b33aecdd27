"""What ``REDISLOCK_CLIENT`` and ``REDISLOCK_ASYNC_CLIENT`` name where locks live on a Cluster."""

import redis
from django.conf import settings
from redis import asyncio


def make() -> redis.RedisCluster:
    told = settings.TESTS_CLUSTER
    nodes = [redis.cluster.ClusterNode(*address) for address in told["startup"]]
    return redis.RedisCluster(startup_nodes=nodes, **told["options"])


def make_async() -> asyncio.RedisCluster:
    told = settings.TESTS_CLUSTER
    nodes = [asyncio.cluster.ClusterNode(*address) for address in told["startup"]]
    return asyncio.RedisCluster(startup_nodes=nodes, **told["options"])
