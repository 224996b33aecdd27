"""Fifty waiters ride through an outage of their server."""

import time

import pytest

from tests.faults.proxy import Proxy
from tests.outages import CROWD, survive
from tests.tools import wait_until

pytestmark = pytest.mark.timeout(300)

KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])
SECONDS = pytest.mark.parametrize("seconds", [0.3, 3, 20])


@pytest.fixture
def persistent(own_server, own_redis):
    """The server keeps its data in a restart."""
    own_redis.config_set("appendonly", "yes")
    own_redis.config_set("appendfsync", "always")
    wait_until(lambda: own_redis.info("persistence")["aof_rewrite_in_progress"] == 0)
    own_server.config |= {"appendonly": "yes"}
    return own_server


@KINDS
@SECONDS
def test_a_restarted_server_serves_all_waiters_in_order(persistent, alias_on, kind, seconds):
    def restart():
        persistent.stop()
        time.sleep(seconds)
        persistent.start()

    assert survive(alias_on(persistent.url), kind, restart) == list(range(CROWD))


@KINDS
@SECONDS
def test_a_network_that_comes_back_serves_all_waiters_in_order(
    own_server, alias_on, kind, seconds
):
    def cut():
        proxy.refuse()
        proxy.cut()
        time.sleep(seconds)
        proxy.accept()

    with Proxy("127.0.0.1", own_server.port) as proxy:
        assert survive(alias_on(proxy.through(own_server.url)), kind, cut) == list(range(CROWD))


@KINDS
def test_a_server_that_lost_its_data_serves_all_waiters(own_server, alias_on, kind):
    def restart():
        own_server.stop()
        own_server.start()

    survive(alias_on(own_server.url), kind, restart)


@KINDS
def test_a_server_that_is_read_only_for_a_second_serves_all_waiters(
    own_server, own_redis, alias_on, kind
):
    def forbid_writes():
        own_redis.replicaof("127.0.0.1", 1)
        time.sleep(1)
        own_redis.replicaof("NO", "ONE")

    assert survive(alias_on(own_server.url), kind, forbid_writes) == list(range(CROWD))
