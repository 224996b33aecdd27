"""Processes that take turns with one lock, and an analysis of their records.

All times use the monotonic clock, which is the same in all processes of a machine.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from .contenders import contender
from .crew import Crew
from .figure import quantiles

SETTLE = 0.2  # seconds at the beginning that do not count, until all processes wait

WORK, PAUSE = 0.003, 0.001
"""Seconds for which the lock is held, and for which its last holder pauses. So the last holder
waits again at the next release, but does not acquire the lock before the waiters."""

QUEUED_AFTER_SECONDS = 0.001
"""After this time, and two round trips of the network, a client certainly waits."""


Lock = tuple[str, str, str, str]
"""The arguments of `contender`: its label, the first server, a name, and our lock's alias if it is
on another server."""


class Turn(NamedTuple):
    asked: float
    held: float
    left: float  # when the release began


def take(lock: Lock, begin: float, end: float, work: float, pause: float) -> list[Turn]:
    """Take turns from `begin` to `end`. Runs in a process of a crew."""
    one = contender(*lock)
    turns = []
    time.sleep(max(0.0, begin - time.monotonic()))
    while (asked := time.monotonic()) < end:
        one.acquire()
        held = time.monotonic()
        time.sleep(work)
        left = time.monotonic()
        one.release()
        turns.append(Turn(asked, held, left))
        if pause:
            time.sleep(pause)
    return turns


def connect(lock: Lock) -> None:
    """Acquire and release another lock as a warm-up."""
    label, url, name, alias = lock
    one = contender(label, url, f"{name}:{os.getpid()}", alias)
    one.acquire()
    one.release()


@dataclass(frozen=True)
class Story:
    """The records of all processes."""

    begin: float
    end: float
    by_process: Sequence[Sequence[Turn]]
    queued_after: float  # seconds from a request until its client certainly waits

    @property
    def turns(self) -> list[Turn]:
        turns = (turn for each in self.by_process for turn in each)
        return sorted(turns, key=attrgetter("held"))

    def handovers(self) -> list[float]:
        """Return the seconds from the start of each release to the return of acquire in a process
        that was already waiting."""
        found = [
            after.held - before.left
            for before, after in pairwise(self.turns)
            if before.left > self.begin + SETTLE and after.asked < before.left - self.queued_after
        ]
        assert found, "no waiter acquired the lock"
        return found

    @property
    def per_second(self) -> float:
        """The turns that began before the end, per second."""
        return sum(turn.held < self.end for turn in self.turns) / (self.end - self.begin)

    @property
    def longest_wait(self) -> float:
        """The longest wait in seconds, including waits that had not ended."""
        return max(turn.held - turn.asked for turn in self.turns)


def play(
    crew: Crew,
    processes: int,
    label: str,
    url: str,
    name: str,
    *,
    seconds: float,
    work: float = WORK,
    pause: float = PAUSE,
    alias: str = "",
    round_trip: float = 0,
) -> Story:
    """Let processes take turns, and return their records.

    Each holds the lock for two more round trips of the network, so that the last holder waits
    again at the next release as it does without a network.
    """
    lock = label, url, name, alias
    crew.order(processes, connect, lock)
    begin = time.monotonic() + 0.1 + 0.002 * processes  # time to send the orders
    end = begin + seconds
    work += 2 * round_trip
    records = crew.order(processes, take, lock, begin, end, work, pause)
    return Story(begin, end, records, QUEUED_AFTER_SECONDS + 2 * round_trip)


def handovers(stories: Mapping[str, Sequence[Story]], percentile: int) -> dict[str, list[float]]:
    """Return a percentile of the handovers of each contender, by round."""
    return {
        label: [quantiles(story.handovers(), 100)[percentile - 1] for story in some]
        for label, some in stories.items()
    }
