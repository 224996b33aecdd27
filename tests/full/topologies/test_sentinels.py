import asyncio

import pytest
import redis

from django_redislock import locks
from tests.tools import wait_until

from .conftest import sorts

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("topology", sorts("sentinels"), indirect=True)
def test_a_loop_that_ended_left_no_connection_to_a_sentinel(topology):
    async def use():
        async with locks.lock("a"):
            assert clients(topology) - before

    before = clients(topology)
    asyncio.run(use())
    wait_until(lambda: clients(topology) <= before)


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
