"""Two writers at the same moment: the write with the newer token always stands."""

import random
import time
from threading import Barrier

import pytest

from django_redislock import StaleLock
from tests.fast.fencing.test_races import in_thread, read_and_save, save, update, update_joined
from tests.fencing.models import Owner
from tests.fencing.tools import account, stored

ROUNDS = 100


def race(way, row, first_token, barrier):
    """Return how many of the writes were stale."""
    stale = 0
    for number in range(ROUNDS):
        token = first_token + 2 * number
        barrier.wait(60)
        time.sleep(random.uniform(0, 0.001))
        try:
            way(row, token, token)
        except StaleLock:
            stale += 1
        barrier.wait(60)
        newest = 2 * number + 2
        found = stored(row)
        assert (found.balance, found.fence) == (newest, newest)
    return stale


# On SQLite a transaction that has read may not write after another one wrote.
@pytest.mark.parametrize(
    ("using", "way"),
    [
        *(("postgres", way) for way in (update, save, update_joined, read_and_save)),
        *(("sqlite", way) for way in (update, save, update_joined)),
    ],
    indirect=["using"],
)
def test_the_newer_of_two_writes_stands(using, way):
    row = account(using, owner=Owner.objects.using(using).create(name="Ada"))
    barrier = Barrier(2)
    older, newer = (in_thread(race, way, row, token, barrier) for token in (1, 2))
    assert newer.result(90) == 0
    assert older.result(90) > 0
