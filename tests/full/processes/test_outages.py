"""Fifty waiters ride through an outage of their server."""

import time

import pytest

from tests.faults.proxy import Proxy
from tests.outages import CROWD, survive
from tests.tools import wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.parametrize("kind", ["threads", "tasks"]),
]

SECONDS = 3


def test_a_restarted_server_serves_all_waiters_in_order(own_server, own_redis, alias_on, kind):
    def restart():
        own_server.stop()
        time.sleep(SECONDS)
        own_server.start()

    own_server.configure(appendonly="yes", appendfsync="always")
    wait_until(lambda: own_redis.info("persistence")["aof_rewrite_in_progress"] == 0)
    assert survive(alias_on(own_server.url), kind, restart) == list(range(CROWD))


def test_a_network_that_comes_back_serves_all_waiters_in_order(own_server, alias_on, kind):
    def cut():
        proxy.refuse()
        proxy.cut()
        time.sleep(SECONDS)
        proxy.accept()

    with Proxy("127.0.0.1", own_server.port) as proxy:
        assert survive(alias_on(proxy.through(own_server.url)), kind, cut) == list(range(CROWD))
