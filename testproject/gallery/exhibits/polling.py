"""Waiters poll, and the first to ask after a release acquires the lock."""

import time
from collections.abc import Sequence

from testproject.gallery.actor_process import requests_sent
from testproject.gallery.actors import Actor, ActorServer
from testproject.gallery.exhibit import Exhibit, Outcome, typical
from testproject.gallery.lock_pairs import OurLock, TaughtLock
from testproject.gallery.trial import ActorFactory, Trial, require

from .fixed_lease import RELEASE

PROCESSES = 16
TURNS = 2
WORK = 0.005

ASKS = {"SET", "EVALSHA"}
WAITS = ["SET", "SET", "BLPOP"]
"""A second SET means that the client was refused and slept. BLPOP means that it is queued."""

PER_TURN = f"requests per acquisition, with {PROCESSES} processes"
LONGEST = f"longest wait divided by the mean wait, with {PROCESSES} processes"


class Polling(TaughtLock):
    def enter(self) -> None:
        while not self.client.set(self.name, self.token, nx=True, px=self.lease_ms):
            time.sleep(0.01)

    def release(self) -> None:
        self.client.eval(RELEASE, 1, self.name, self.token)


class InTurns:
    """Acquires and releases a lock several times."""

    def __init__(self, name: str, lease: float, lock: ActorFactory) -> None:
        self.lock = lock(name, lease)
        self.take(1)  # connect and load the scripts before the measurement

    def take(self, turns: int) -> tuple[list[float], int]:
        """Return the seconds of each wait, and the number of requests to the server."""
        before = requests_sent()
        return [self._wait() for _ in range(turns)], requests_sent() - before

    def _wait(self) -> float:
        asked = time.monotonic()
        self.lock.enter()
        held = time.monotonic()
        time.sleep(WORK)
        self.lock.release()
        return held - asked


def run_trials(actor_server: ActorServer, lock: ActorFactory, trials: int) -> list[Outcome]:
    """Run the trials one after another, and measure the same processes each time."""
    with Trial(actor_server) as trial:
        crew = [trial.actor(InTurns, lock) for _ in range(PROCESSES)]
        return [Outcome(_pushes_in(actor_server, lock), _round(crew)) for _ in range(trials)]


def _pushes_in(actor_server: ActorServer, lock: ActorFactory) -> bool:
    """Return whether the previous holder acquires the lock again before a waiter."""
    with Trial(actor_server) as trial:
        busy, waiting = trial.actor(lock), trial.actor(lock)
        busy.do("enter")
        waiting.begin("enter", halt_before=WAITS)
        require(waiting.halts(), "the second client was refused, and waits")
        busy.do("release")
        busy.begin("enter", halt_before=WAITS)
        return not busy.halts()


def _round(crew: Sequence[Actor]) -> dict[str, float]:
    for each in crew:
        each.begin("take", TURNS, halt_before=ASKS)
        each.halts()
    for each in crew:
        each.resume()
    results = [each.end() for each in crew]
    waits = [wait for waits, _ in results for wait in waits]
    return {
        PER_TURN: sum(sent for _, sent in results) / len(waits),
        LONGEST: max(waits) / (sum(waits) / len(waits)),
    }


EXHIBIT = Exhibit(
    name="polling",
    title="Waiting by polling",
    algorithm="A waiter sleeps for 10 ms and tries again.",
    failure="the previous holder acquired the lock again before a waiter",
    taught=Polling,
    ours=OurLock,
    run_trials=run_trials,
    figures={PER_TURN: typical, LONGEST: typical},
)
