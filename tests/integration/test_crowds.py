"""Many processes at read-write locks and semaphores: what their histories must never show."""

import json
import math
import os
import subprocess
import sys
from bisect import bisect
from collections import Counter
from itertools import accumulate

import pytest

from django_redislock import locks
from django_redislock.engine.flows import ALIVE, CLAIM, SLICE
from tests.tools import ROOT

from .crowd import Hold
from .tools import free

LIMIT = 5

MARGIN = 3.0
"""Seconds that a busy machine may take, and those who stood in the queue before all permits
were asked for."""


def crowd(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.crowd", *arguments],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdout=subprocess.PIPE,
        check=False,
    )
    told = json.loads(done.stdout)
    assert told["troubles"] == []
    return told, [Hold(*hold) for hold in told["holds"]]


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_readers_and_writers_in_many_processes(seconds):
    _, holds = crowd("readwrite", "--readers", "16", "--writers", "4", "--seconds", str(seconds))
    together = [(readers, writers) for readers, writers, _ in insides(holds)]
    assert [each for each in together if min(each) > 0 or each[1] > 1] == []
    assert max(together)[0] > 4
    assert overtakings(holds) == []

    # Of those who stood before it each entered once, and nobody else did.
    waits = list(waits_of_writers(holds))
    for _, before in waits:
        assert set(Counter(hold.process for hold in before).values()) <= {1}
    assert 0 < max(len(before) for _, before in waits) < 20
    assert all(times > seconds for times in each_ones_entries(holds, 20))
    report(holds, waits)


@pytest.mark.slow
def test_killed_processes_at_a_semaphore():
    lease = 4
    told, holds = crowd("semaphore", "--limit", str(LIMIT), "--lease", str(lease))
    assert Counter(each["state"] for each in told["killed"]) == {"asks": 5, "entered": 5}
    assert max(permits for *_, permits in insides(holds)) == LIMIT
    assert overtakings(holds) == []
    # Whoever died in the queue may be let in for as long as it seems to be alive, and then has
    # until its claim ends.
    assert told["back"] < max(lease, ALIVE + CLAIM) + SLICE + MARGIN
    last = told["killed"][-1]["at"]
    assert len({hold.process for hold in holds if hold.asked > last}) == 41  # who lives goes on
    print(f"{len(holds)} holds; all permits back after {told['back']:.2f} s of {lease}")
    free(locks, "crowd")


def insides(holds):
    """How many readers, writers and permits are inside, after each step of the history."""
    steps = [(hold.entered, 1, hold.side) for hold in holds]
    steps += [(hold.leaves, -1, hold.side) for hold in holds]
    inside = Counter()
    for _, change, side in sorted(steps):
        inside[side] += change
        yield inside["read"], inside["write"], inside["permit"] + LIMIT * inside["all"]


def overtakings(holds):
    """Who stood in the queue, and the fencing token of one who asked later but was let in
    before. (Fencing tokens are in the order of entries.)"""
    by_asked = sorted(holds, key=asked)
    fences = [hold.fence for hold in reversed(by_asked)]
    lowest_from = [*reversed(list(accumulate(fences, min))), math.inf]
    waited = [hold for hold in holds if hold.queued]
    firsts = [lowest_from[bisect(by_asked, hold.queued, key=asked)] for hold in waited]
    return [
        (hold, first) for hold, first in zip(waited, firsts, strict=True) if first < hold.fence
    ]


def asked(hold):
    return hold.asked


def entered(hold):
    return hold.entered


def waits_of_writers(holds):
    """Each writer that stood in the queue, with who entered between that and its own entry."""
    by_entered = sorted(holds, key=entered)
    for hold in holds:
        if hold.side == "write" and hold.queued:
            begin, end = (
                bisect(by_entered, at, key=entered) for at in (hold.queued, hold.entered)
            )
            yield hold, by_entered[begin : end - 1]


def each_ones_entries(holds, processes):
    entries = Counter(hold.process for hold in holds)
    assert len(entries) == processes
    return entries.values()


def report(holds, waits):
    longest = max(hold.entered - hold.asked for hold, _ in waits)
    readers = max(hold.entered - hold.asked for hold in holds if hold.side == "read")
    most = max(len(before) for _, before in waits)
    sides = Counter(hold.side for hold in holds)
    print(
        f"{sides}; longest wait of a writer {longest:.3f} s, behind {most} others; "
        f"of a reader {readers:.3f} s; at most {max(insides(holds))[0]} readers together"
    )
