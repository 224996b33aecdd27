"""Servers of a quorum that are away for longer than a lease."""

import contextlib
import random
import time

import pytest

from django_redislock import LockLost
from tests.lock_tools import start
from tests.quorums import quorum
from tests.tools import wait_until

LEASE = 2.5


@pytest.mark.xdist_group("quorum")  # its servers start once
@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_server_that_restarts_after_a_lease_admits_no_second_holder(five, is_renewed):
    restarted = random.choice([0, 1])
    five.kill(2)
    first = quorum(using=["q0", "q1", "q2"], timeout=LEASE, auto_renewal=is_renewed)
    assert first.acquire()
    five.start(2)
    five.kill(restarted)
    killed = time.monotonic()

    def come_second():
        with quorum(using=["r2", "r3", "r4"], timeout=LEASE) as second:
            return first.token is None or first.lost, second.fence_token

    rival = start(come_second)
    fence = first.fence_token
    wait_until(lambda: time.monotonic() > killed + LEASE)
    five.start(restarted)
    assert first.lost or is_renewed  # either of them may have taken the third server
    with contextlib.suppress(LockLost):
        first.release()
    lost_before, second_fence = rival.result(60)
    assert lost_before
    assert second_fence > fence
