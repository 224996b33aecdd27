"""An interrupt at any step of a request leaves no unread reply, and no connection in use.

A run tries one step in ``INTERRUPT_EVERY``, from a random one on. ``INTERRUPT_EVERY=1`` tries all.
"""

import os
import random
from contextlib import ExitStack

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock import Lock
from tests.faults.proxy import Proxy
from tests.interrupts import (
    LINES,
    SIGNALS,
    Case,
    cancel_everywhere,
    interrupt_everywhere,
    make_client,
)
from tests.servers import Cluster, Sentinels

pytestmark = [
    pytest.mark.timeout(900),
    # redis-py reads a file for each connection, and an interrupt can keep it from closing that.
    pytest.mark.filterwarnings("ignore:unclosed file.*METADATA:ResourceWarning"),
]

DELAY_SECONDS = 0.005
"""In each direction. It is longer than the time from an interrupt to the next request."""

EVERY = int(os.environ.get("INTERRUPT_EVERY", "20"))


@pytest.fixture
def proxy(own_server):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        proxy.delay(DELAY_SECONDS)
        yield proxy


@pytest.fixture
def url(proxy, own_server):
    return proxy.through(own_server.url)


@pytest.fixture
def observer(own_server):
    with redis.Redis.from_url(own_server.url) as client:
        yield client


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "warm"])
@pytest.mark.parametrize("where", [SIGNALS, LINES])
def test_an_interrupt_at_any_step(url, observer, where, is_warm):
    case = Case(lambda: make_client(url), observer, is_warm, Lock, where)
    assert interrupt_everywhere(case, first=random.randint(1, EVERY), every=EVERY)


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "warm"])
async def test_a_cancellation_at_any_await_point(url, observer, is_warm):
    assert await cancel_everywhere(url, observer, is_warm=is_warm) > 1


STEPS_APART = 9


@pytest.mark.parametrize("where", [SIGNALS, LINES])
def test_an_interrupt_with_sentinels(where):
    class Lagging(redis.Sentinel):
        def discover_master(self, service_name):
            super().discover_master(service_name)
            return proxy.address

    def make():
        pool = redis.sentinel.SentinelConnectionPool(
            "locks", Lagging(running.addresses), max_connections=1, retry=Retry(NoBackoff(), 0)
        )
        return redis.Redis(connection_pool=pool)

    with Sentinels(down_after=60_000) as running, Proxy(*running.master.address) as proxy:
        proxy.delay(DELAY_SECONDS)
        with running.master.client() as observer:
            case = Case(make, observer, where=where)
            assert interrupt_everywhere(case, every=STEPS_APART)


@pytest.mark.parametrize("where", [SIGNALS, LINES])
def test_an_interrupt_with_a_cluster(where):
    def make():
        return redis.RedisCluster(
            startup_nodes=[redis.cluster.ClusterNode(*each) for each in running.startup],
            address_remap=lambda address: proxies[address].address,
            max_connections=1,
        )

    with Cluster("valkey-9.1") as running, ExitStack() as stack:
        proxies = {
            node.address: stack.enter_context(Proxy(*node.address)) for node in running.nodes
        }
        for proxy in proxies.values():
            proxy.delay(DELAY_SECONDS)
        case = Case(make, running.client(), where=where)
        # Each client reads the slots first.
        assert interrupt_everywhere(case, every=5 * STEPS_APART)
