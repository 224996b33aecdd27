import asyncio
from inspect import signature

import pytest
import redis
from redis.exceptions import ConnectionError
from redis.sentinel import Sentinel

from django_redislock import locks
from tests.tools import wait_until

from .conftest import sorts

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("topology", sorts("sentinels", "django-redis-sentinels"), indirect=True)
def test_a_loop_that_ended_left_no_connection_to_a_sentinel(topology):
    async def use():
        async with locks.lock("a"):
            assert clients(topology) - before

    before = clients(topology)
    asyncio.run(use())
    wait_until(lambda: clients(topology) <= before)


@pytest.mark.skipif(
    "force_master_ip" not in signature(Sentinel).parameters, reason="redis-py does not know it yet"
)
@pytest.mark.parametrize("topology", sorts("sentinels"), indirect=True)
def test_asyncio_connects_to_the_forced_address_of_the_master(topology, settings):
    elsewhere = Sentinel(topology.arguments["sentinels"], force_master_ip="127.0.0.2")
    alias = settings.CACHES["default"]
    options = alias["OPTIONS"] | {"sentinel_manager": elsewhere}
    settings.CACHES = {"default": alias | {"OPTIONS": options}}

    async def use():
        await locks.lock("a").aacquire()

    with pytest.raises(ConnectionError):
        locks.lock("a").acquire()
    with pytest.raises(ConnectionError):
        asyncio.run(use())


def clients(topology):
    """Return the connections to the Sentinels, except their own and the one that asks."""
    found = set()
    for host, port in topology.arguments["sentinels"]:
        with redis.Redis(host=host, port=port, client_name="asks", decode_responses=True) as asks:
            found |= {
                (port, each["id"])
                for each in asks.client_list()
                if not each["name"].startswith(("sentinel-", "asks"))
            }
    return found
