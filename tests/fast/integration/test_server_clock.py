"""The clock of the server is set back while somebody waits. See also unit/test_scripts.py."""

import pytest
import redis

from django_redislock import Lock
from django_redislock.engine import protocol
from django_redislock.engine.runners import run
from django_redislock.keys import Keys
from tests.lock_tools import start
from tests.servers import Node
from tests.servers.clock import Clock
from tests.tools import wait_until

KEYS = Keys("redislock")
HOUR = 3600


@pytest.fixture(scope="module")
def clocked(tmp_path_factory):
    """A server, and its clock."""
    clock = Clock(tmp_path_factory.mktemp("clock") / "clock")
    with Node("valkey-9.1", environment=clock.environment) as node:
        yield node, clock


@pytest.fixture
def client(clocked):
    node, _ = clocked
    with redis.Redis.from_url(node.url) as client:
        client.flushdb()
        yield client


def move(clocked, client, seconds):
    """Move the clock of the server, and wait until it goes by that."""
    expected = client.time()[0] + seconds
    clocked[1].move(seconds)
    wait_until(lambda: abs(client.time()[0] - expected) < HOUR / 2)


def test_a_waiter_that_died_does_not_block_a_lock_when_the_clock_is_set_back(clocked, client):
    """It counts as alive for an hour, and gets one grant, which is short."""
    keys = KEYS.of("a")
    lock = Lock(client, "a", timeout=60)
    assert lock.acquire()
    with redis.Redis.from_url(clocked[0].url) as own:
        waits = start(lambda: Lock(own, "a", timeout=60).acquire(blocking_timeout=0.3))
        wait_until(lambda: client.exists(keys.queue))
        dead = client.dump(keys.queue), client.dump(keys.waiting)
        assert waits.result(60) is False
    client.restore(keys.queue, 1500, dead[0])
    client.restore(keys.waiting, 1500, dead[1])
    move(clocked, client, -HOUR)
    lock.release()
    assert Lock(client, "a", timeout=60).acquire(blocking_timeout=20)
    run(client, protocol.force_release(keys, None))
