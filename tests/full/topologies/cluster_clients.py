"""Cluster clients for ``REDISLOCK_CLIENT`` and ``REDISLOCK_ASYNC_CLIENT``."""

import redis
from django.conf import settings
from redis import asyncio


def make() -> redis.RedisCluster:
    cluster = settings.TESTS_CLUSTER
    nodes = [redis.cluster.ClusterNode(*address) for address in cluster["startup"]]
    return redis.RedisCluster(startup_nodes=nodes, **cluster["options"])


def make_async() -> asyncio.RedisCluster:
    cluster = settings.TESTS_CLUSTER
    nodes = [asyncio.cluster.ClusterNode(*address) for address in cluster["startup"]]
    return asyncio.RedisCluster(startup_nodes=nodes, **cluster["options"])
