"""Those who wait ask again and again, and whoever happens to ask first gets in."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from testproject.gallery.actors import Actor, Home
from testproject.gallery.exhibit import Exhibit, Outcome, typical
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.playing import requests_sent
from testproject.gallery.scene import Part, Scene

from .fixed_lease import RELEASE

PROCESSES = 16
TURNS = 2
WORK = 0.005

ASKS = {"SET", "EVALSHA"}
PER_TURN, LONGEST = "requests for an acquisition", "longest wait, in mean waits"


class Turn(NamedTuple):
    process: int
    asked: float
    held: float


class Polling(Taught):
    def enter(self) -> None:
        while not self.client.set(self.name, self.token, nx=True, px=self.lease_ms):
            time.sleep(0.01)

    def release(self) -> None:
        self.client.eval(RELEASE, 1, self.name, self.token)


class InTurns:
    """Takes turns with one of them."""

    def __init__(self, name: str, lease: float, lock: Part, process: int) -> None:
        self.lock, self.process = lock(name, lease), process
        self.take(1)  # what it needs is there from now on

    def take(self, turns: int) -> tuple[list[Turn], int]:
        """When, and for how many requests."""
        before = requests_sent()
        return [self._take() for _ in range(turns)], requests_sent() - before

    def _take(self) -> Turn:
        asked = time.monotonic()
        self.lock.enter()
        held = time.monotonic()
        time.sleep(WORK)
        self.lock.release()
        return Turn(self.process, asked, held)


def plays(home: Home, lock: Part, trials: int) -> list[Outcome]:
    """All trials with the same processes, one after the other."""
    with Scene(home) as scene:
        crew = [scene.actor(InTurns, lock, process) for process in range(PROCESSES)]
        return [_round(crew) for _ in range(trials)]


def _round(crew: Sequence[Actor]) -> Outcome:
    for each in crew:
        each.begin("take", TURNS, halt_before=ASKS)
        each.halts()
    for each in crew:
        each.go_on()
    told = [each.end() for each in crew]
    turns = sorted((turn for turns, _ in told for turn in turns), key=lambda turn: turn.held)
    waits = [turn.held - turn.asked for turn in turns]
    return Outcome(
        failed=any(_pushes_in(turns, *two) for two in pairwise(range(len(turns)))),
        figures={
            PER_TURN: sum(sent for _, sent in told) / len(turns),
            LONGEST: max(waits) / (sum(waits) / len(waits)),
        },
    )


def _pushes_in(turns: Sequence[Turn], one: int, next_one: int) -> bool:
    """Whether the same process went in again, before one that had asked before it did."""
    again = turns[next_one]
    later = turns[next_one + 1 :]
    return turns[one].process == again.process and any(t.asked < again.asked for t in later)


EXHIBIT = Exhibit(
    name="polling",
    title="Waiting by asking again",
    algorithm="Who finds the lock taken sleeps for 10 ms and asks again.",
    failure=f"of {PROCESSES} processes one went in twice in a row, before others who waited",
    taught=Polling,
    ours=Ours,
    plays=plays,
    figures={PER_TURN: typical, LONGEST: typical},
)
