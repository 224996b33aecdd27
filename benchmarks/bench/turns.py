"""Processes that take turns with one lock, and what their notes tell.

All times are of the monotonic clock, which is the same in all processes of a machine.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple
from uuid import uuid4

from .contenders import LIST, client_of, contender
from .crew import Crew
from .figure import quantiles

SETTLE = 0.2  # seconds at the beginning that don't count: not everybody waits yet

WORK, PAUSE = 0.003, 0.001
"""Seconds that the lock is held, and that its last holder stays away: so it waits again when the
lock is released the next time, and does not snatch it from those who waited."""

SURELY = 0.001  # seconds after which whoever asked surely waits


Lock = tuple[str, str, str, str]
"""The arguments of `contender`: its label, the first server, a name, and the alias where the lock
is, if it is ours and elsewhere."""


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
    """Acquire and release another lock, so that what it needs is there; a list is put first."""
    label, url, name, alias = lock
    one = contender(label, url, f"{name}:{os.getpid()}", alias)
    for call in (one.release, one.acquire) if label == LIST else (one.acquire, one.release):
        call()


@dataclass(frozen=True)
class Story:
    """What all processes did together."""

    begin: float
    end: float
    by_process: Sequence[Sequence[Turn]]
    # The commands that clients sent for an acquisition, where they were counted.
    sent: float = math.nan

    @property
    def turns(self) -> list[Turn]:
        turns = (turn for each in self.by_process for turn in each)
        return sorted(turns, key=attrgetter("held"))

    def handovers(self) -> list[float]:
        """Seconds from the start of a release to the return of acquire in a process that was
        waiting by then."""
        found = [
            after.held - before.left
            for before, after in pairwise(self.turns)
            if before.left > self.begin + SETTLE and after.asked < before.left - SURELY
        ]
        assert found, "nobody who waited was let in"
        return found

    @property
    def counts(self) -> list[int]:
        """Of each process how many turns it got before the end."""
        return [sum(turn.held < self.end for turn in each) for each in self.by_process]

    @property
    def per_second(self) -> float:
        return sum(self.counts) / (self.end - self.begin)

    @property
    def fairness(self) -> float:
        """Jain's index: 1 if all had as many turns, 1/n if one had all."""
        counts = self.counts
        return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))

    @property
    def longest_wait(self) -> float:
        """Whoever still waited at the end is counted for as long as it did."""
        return max(turn.held - turn.asked for turn in self.turns)

    @property
    def full_round(self) -> float:
        """Seconds in which each could have had one turn."""
        return len(self.by_process) / self.per_second


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
) -> Story:
    """Have so many processes take turns, and return what they did together."""
    if label == LIST:
        name += f":{uuid4()}"  # the entry of the round before may still be in its list
    lock = label, url, name, alias
    crew.order(processes, connect, lock)
    if label == LIST:
        client_of(url).lpush(f"{label}:{name}", 1)
    begin = time.monotonic() + 0.1 + 0.002 * processes  # until then all have their order
    end = begin + seconds
    return Story(begin, end, crew.order(processes, take, lock, begin, end, work, pause))


def percentiles(stories: Mapping[str, Sequence[Story]], percent: int) -> dict[str, list[float]]:
    """Of the hand-overs of each contender, by round."""
    return {
        label: [quantiles(story.handovers(), 100)[percent - 1] for story in some]
        for label, some in stories.items()
    }
