"""Wall clocks that are set: of a holder, and of the server."""

import time

import pytest

from tests.lock_tools import start, waiting
from tests.servers import Node
from tests.servers.clock import Clock
from tests.tools import Child, wait_until

HOUR = 3600
LEASE = 2.0

HOLDS = """
import time
from django.conf import settings
from django_redislock import locks
url, lease = sys.argv[1:]
settings.CACHES["own"] = settings.CACHES["default"] | {"LOCATION": url, "KEY_PREFIX": "own"}
lock = locks.using("own").lock("a", timeout=float(lease))
lock.acquire()
say("held")
hear()
say(f"{time.time()} {lock.lost} {lock.owned()}")
lock.release()
"""


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path / "clock")


@pytest.fixture
def on_clock(clock, alias_on):
    """A server that goes by the clock, and its alias."""
    with Node("valkey-9.1", environment=clock.environment) as node:
        yield node, alias_on(node.url, alias="own")


def test_a_holder_does_not_go_by_its_wall_clock(clock, alias_on, own_server):
    own = alias_on(own_server.url, alias="own")
    with Child(HOLDS, own_server.url, str(LEASE), **clock.environment) as child:
        child.expect("held")
        for seconds in (HOUR, -2 * HOUR, 2 * HOUR):
            clock.move(seconds)
            renewed = own.get("a").expires_at
            wait_until(lambda renewed=renewed: own.get("a").expires_at > renewed)
        child.tell()
        wall, lost, owned = child.expect("").split()
        assert abs(float(wall) - HOUR - time.time()) < HOUR / 2
        assert (lost, owned) == ("False", "True")
        assert child.wait() == 0


def enters(lock):
    with lock:
        return True


def test_all_leases_end_if_the_servers_clock_is_set_forward(clock, on_clock):
    _, own = on_clock
    lock = own.lock("a", timeout=LEASE)
    assert lock.acquire()
    waits = start(enters, own.lock("a"))
    waiting(own, "a", 1)
    clock.move(HOUR)
    assert waits.result(60)
    wait_until(lambda: lock.lost)


def test_the_lock_of_a_dead_holder_stays_if_the_servers_clock_is_set_back(clock, on_clock):
    node, own = on_clock
    with Child(HOLDS, node.url, str(LEASE)) as child:
        child.expect("held")
        clock.move(-HOUR)
        child.kill()
    dead = time.monotonic()
    wait_until(lambda: time.monotonic() > dead + LEASE)
    assert HOUR - 60 < own.get("a").ttl <= HOUR + LEASE
    assert own.force_release("a") == 1
    with own.lock("a", blocking=False):
        pass
