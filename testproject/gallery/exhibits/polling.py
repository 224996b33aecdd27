"""Those who wait ask again and again, and whoever happens to ask first gets in."""

import time
from collections.abc import Sequence

from testproject.gallery.actors import Actor, Home
from testproject.gallery.exhibit import Exhibit, Outcome, typical
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.playing import requests_sent
from testproject.gallery.scene import Part, Scene, hold

from .fixed_lease import RELEASE

PROCESSES = 16
TURNS = 2
WORK = 0.005

ASKS = {"SET", "EVALSHA"}
WAITS = ["SET", "SET", "BLPOP"]
"""Who asks for the second time was refused, and slept; who pops stands in the queue."""

PER_TURN = f"requests per acquisition, with {PROCESSES} processes"
LONGEST = f"longest wait divided by the mean wait, with {PROCESSES} processes"


class Polling(Taught):
    def enter(self) -> None:
        while not self.client.set(self.name, self.token, nx=True, px=self.lease_ms):
            time.sleep(0.01)

    def release(self) -> None:
        self.client.eval(RELEASE, 1, self.name, self.token)


class InTurns:
    """Takes turns with one of them."""

    def __init__(self, name: str, lease: float, lock: Part) -> None:
        self.lock = lock(name, lease)
        self.take(1)  # what it needs is there from now on

    def take(self, turns: int) -> tuple[list[float], int]:
        """How long it waited each time, and for how many requests to the server."""
        before = requests_sent()
        return [self._wait() for _ in range(turns)], requests_sent() - before

    def _wait(self) -> float:
        asked = time.monotonic()
        self.lock.enter()
        held = time.monotonic()
        time.sleep(WORK)
        self.lock.release()
        return held - asked


def plays(home: Home, lock: Part, trials: int) -> list[Outcome]:
    """One after the other; what is measured is measured of the same processes."""
    with Scene(home) as scene:
        crew = [scene.actor(InTurns, lock) for _ in range(PROCESSES)]
        return [Outcome(_pushes_in(home, lock), _round(crew)) for _ in range(trials)]


def _pushes_in(home: Home, lock: Part) -> bool:
    """Whether who has just released it gets it again, before one who waits."""
    with Scene(home) as scene:
        busy, waiting = scene.actor(lock), scene.actor(lock)
        busy.do("enter")
        waiting.begin("enter", halt_before=WAITS)
        hold(waiting.halts(), "the other one has asked, and has to wait")
        busy.do("release")
        busy.begin("enter", halt_before=WAITS)
        return not busy.halts()


def _round(crew: Sequence[Actor]) -> dict[str, float]:
    for each in crew:
        each.begin("take", TURNS, halt_before=ASKS)
        each.halts()
    for each in crew:
        each.go_on()
    told = [each.end() for each in crew]
    waits = [wait for waits, _ in told for wait in waits]
    return {
        PER_TURN: sum(sent for _, sent in told) / len(waits),
        LONGEST: max(waits) / (sum(waits) / len(waits)),
    }


EXHIBIT = Exhibit(
    name="polling",
    title="Waiting by polling",
    algorithm="A waiter sleeps for 10 ms and tries again.",
    failure="the previous holder acquired the lock again before a waiter",
    taught=Polling,
    ours=Ours,
    plays=plays,
    figures={PER_TURN: typical, LONGEST: typical},
)
