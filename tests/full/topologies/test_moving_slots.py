"""Slots of a Cluster move while their locks are held and waited for."""

import pytest
from redis.crc import key_slot

from django_redislock import locks
from django_redislock.conf import conf
from django_redislock.keys import Keys
from tests.lock_tools import renewed, start, waiting
from tests.tools import wait_until

from .conftest import sorts

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.parametrize("topology", sorts("cluster-acl"), indirect=True),
]

LEASE = 3.0
SLOT = key_slot(Keys(conf.prefix).index.encode())
"""The slot of all locks."""


def another(cluster):
    owner = cluster.owner(SLOT)
    return next(node for node in cluster.owners() if node is not owner)


@pytest.mark.parametrize("way", ["move_slot", "move_slot_atomically"])
def test_a_lock_is_held_renewed_and_handed_over_across_moves(topology, other, way):
    def move():
        """Move the slot to another master."""
        getattr(topology.cluster, way)(SLOT, another(topology.cluster))

    with locks.lock("a", timeout=LEASE) as lock:
        other.start_acquire("a", blocking_timeout=30)
        waiting(locks, "a", 1)
        for _ in range(2):
            move()
            renewed(locks, "a")
            assert lock.owned()
        fence = lock.fence_token
        waiting(locks, "a", 1)
    assert other.acquired("a") > fence
    move()
    turn = start(enters, locks.lock("a", blocking_timeout=30))
    waiting(locks, "a", 1)
    move()
    assert other.release("a")
    assert turn.result(40)


def enters(lock):
    with lock:
        return True


def test_a_waiter_that_arrives_during_a_move_acquires_the_lock_after_it(topology):
    with locks.lock("a"):
        pass
    asked = []

    def come():
        asked.append(True)
        with locks.lock("a", blocking_timeout=30) as lock:
            return lock.owned()

    with topology.cluster.moving(SLOT, another(topology.cluster)):
        newcomer = start(come)
        wait_until(lambda: asked)
    assert newcomer.result(40)
