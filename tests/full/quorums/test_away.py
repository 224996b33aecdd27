"""Servers of a quorum that are away for longer than a lease."""

import asyncio
import contextlib
import random
import time

import pytest

from django_redislock import LockLost
from tests.lock_tools import start
from tests.quorums import THREE, Five, holders, quorum
from tests.tools import wait_until

pytestmark = pytest.mark.xdist_group("quorum")  # its servers start once

LEASE = 1.5


@contextlib.contextmanager
def killed(five, number):
    """Kill a server, and start it without its data."""
    five.kill(number)
    try:
        yield
    finally:
        five.start(number)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("outage", [killed, Five.hanging])
def test_each_server_may_be_away_for_longer_than_a_lease(five, hanging, outage, is_async):
    fences = []

    def take_turns():
        for number in (0, 1, 2, 0):
            with outage(five, number):
                time.sleep(LEASE * 1.2)
                assert not lock.lost
            wait_until(lambda: holders(five) == THREE)
            assert not quorum(using=THREE, blocking=False).acquire()

    async def hold():
        async with lock:
            fences.append(lock.fence_token)
            await asyncio.to_thread(take_turns)
            assert await lock.aowned()
            assert lock.validity > 0
            assert lock.fence_token == fences[0]

    lock = quorum(using=THREE, timeout=LEASE, on_lost=fences.append)
    if is_async:
        asyncio.run(hold())
    else:
        with lock:
            fences.append(lock.fence_token)
            take_turns()
            assert lock.owned()
            assert lock.fence_token == fences[0]
    five.none_left()
    with quorum(using=THREE) as later:
        assert later.fence_token > fences[0]
    assert len(fences) == 1, "lost"


@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_server_that_restarts_after_a_lease_admits_no_second_holder(five, is_renewed):
    lease, three, restarted = 2.5, ["q0", "q1", "q2"], random.choice([0, 1])
    five.kill(2)
    first = quorum(using=three, timeout=lease, auto_renewal=is_renewed)
    assert first.acquire()
    five.start(2)
    five.kill(restarted)
    killed = time.monotonic()

    def come_second():
        with quorum(using=["r2", "r3", "r4"], timeout=lease) as second:
            return first.token is None or first.lost, second.fence_token

    rival = start(come_second)
    fence = first.fence_token
    wait_until(lambda: time.monotonic() > killed + lease)
    five.start(restarted)
    assert first.lost or is_renewed  # either of them may have taken the third server
    with contextlib.suppress(LockLost):
        first.release()
    lost_before, second_fence = rival.result(60)
    assert lost_before
    assert second_fence > fence


def test_renewals_do_not_shorten_the_validity_of_an_extended_lease(five, moving_clock):
    with quorum(timeout=3) as lock:
        began = moving_clock.now()
        lock.extend(1000)
        for _ in range(200):
            moving_clock.forward(1.1)
        left = 1003 - (moving_clock.now() - began)
        assert left - 25 < lock.validity < left
