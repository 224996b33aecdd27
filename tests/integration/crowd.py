"""A crowd of processes around one lock, and what happened there.

    export DJANGO_SETTINGS_MODULE=tests.settings
    python -m tests.integration.crowd readwrite --readers 16 --writers 4 --seconds 30
    python -m tests.integration.crowd semaphore --processes 50 --limit 5 --kill 10

It prints, as JSON, the holds that were seen, who was killed and when, how many seconds after
the last kill all permits were to be had at once, and what went wrong. Times are of the
monotonic clock, which is the same in all processes.
"""

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import django
import redis

NAME = "crowd"
LONGEST_HOLD = {"read": 0.004, "write": 0.002, "permit": 0.03}
LONG_ENOUGH_TO_RENEW = 0.8
"""Seconds that one in 20 permits is held: who is killed then leaves a full lease behind."""

BETWEEN_KILLS = 0.05


class Hold(NamedTuple):
    """One time that somebody was inside. It truly began by `entered`, and lasted to `leaves`."""

    process: int
    side: str
    asked: float

    queued: float | None
    """When it surely stood in the queue; None: it never had to wait."""

    entered: float
    leaves: float
    fence: int


def main() -> int:
    options = _options()
    _set_up()
    with tempfile.TemporaryDirectory() as folder, _crowd(Path(folder, "events")) as crowd:
        told = options.happens(crowd, options)
    told |= {"holds": crowd.log.holds(), "troubles": crowd.log.troubles()}
    print(json.dumps(told))
    return bool(told["troubles"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    what = parser.add_subparsers(required=True)
    readwrite = what.add_parser("readwrite")
    readwrite.add_argument("--readers", type=int, default=16)
    readwrite.add_argument("--writers", type=int, default=4)
    readwrite.add_argument("--seconds", type=float, default=3)
    readwrite.set_defaults(happens=_readers_and_writers)
    semaphore = what.add_parser("semaphore")
    semaphore.add_argument("--processes", type=int, default=50)
    semaphore.add_argument("--limit", type=int, default=5)
    semaphore.add_argument("--kill", type=int, default=10)
    semaphore.add_argument("--lease", type=float, default=4)
    semaphore.set_defaults(happens=_killed_at_a_semaphore)
    return parser.parse_args()


def _set_up() -> None:
    from django.conf import settings

    django.setup()
    watched = {"OPTIONS": {"connection_class": Watched}}
    settings.CACHES["default"] = settings.CACHES["default"] | watched


# What happens


def _readers_and_writers(crowd: "Crowd", options: argparse.Namespace) -> dict[str, Any]:
    from django_redislock import locks

    for _ in range(options.readers):
        crowd.join("read", lambda: locks.read_lock(NAME))
    for _ in range(options.writers):
        crowd.join("write", lambda: locks.write_lock(NAME))
    time.sleep(options.seconds)
    return {}


def _killed_at_a_semaphore(crowd: "Crowd", options: argparse.Namespace) -> dict[str, Any]:
    from django_redislock import locks

    for _ in range(options.processes):
        crowd.join("permit", lambda: locks.semaphore(NAME, options.limit, timeout=options.lease))
    crowd.wait_for_all_to_ask()
    killed = []
    for number in range(options.kill):
        time.sleep(BETWEEN_KILLS)
        killed.append(crowd.kill_one("entered" if number % 2 else "asks"))
    everything = locks.semaphore(NAME, options.limit, weight=options.limit, timeout=options.lease)
    crowd.log.write("asks", "all")
    with everything:
        back = time.monotonic() - killed[-1]["at"]
        crowd.log.write("entered", "all", fence=everything.fence_token)
        crowd.log.write("leaves", "all")
    time.sleep(0.5)  # for the living to go on for a while
    return {"killed": killed, "back": back}


# The crowd


class Crowd:
    def __init__(self, log: "Log", ends: int, keeps: int) -> None:
        self.log = log
        self.pids: list[int] = []
        self._ends, self._keeps = ends, keeps

    def join(self, side: str, make: Callable[[], Any]) -> None:
        """Another process, which takes the lock again and again."""
        if pid := os.fork():
            self.pids.append(pid)
            return
        try:
            os.close(self._keeps)
            random.seed()
            self._go_round(side, make())
        except BaseException as error:
            self.log.write("trouble", side, error=repr(error))
        os._exit(0)

    def _go_round(self, side: str, lock: Any) -> None:
        while not self._is_over():
            place.leave()
            self.log.write("asks", side)
            with lock:
                self.log.write("entered", side, queued=place.since, fence=lock.fence_token)
                time.sleep(_length(side))
                self.log.write("leaves", side)

    def _is_over(self) -> bool:
        # The pipe is at its end when the first process closes it, or is no more.
        return bool(select.select([self._ends], [], [], 0)[0])

    def wait_for_all_to_ask(self) -> None:
        while len(self.log.last_of_each()) < len(self.pids):
            time.sleep(0.01)

    def kill_one(self, state: str) -> dict[str, Any]:
        """SIGKILL for one whose last word was `state`. It is stopped first, so that it can't
        go on between the look at it and the kill."""
        while True:
            for pid in random.sample(self.pids, len(self.pids)):
                if self.log.last_of_each()[pid] != state:
                    continue
                os.kill(pid, signal.SIGSTOP)
                os.waitpid(pid, os.WUNTRACED)
                if self.log.last_of_each()[pid] == state:
                    return self._kill(pid, state)
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)

    def _kill(self, pid: int, state: str) -> dict[str, Any]:
        at = time.monotonic()
        self.log.write("killed", pid=pid)
        os.kill(pid, signal.SIGKILL)
        self.pids.remove(pid)
        os.waitpid(pid, 0)
        return {"process": pid, "state": state, "at": at}

    def end(self) -> None:
        os.close(self._keeps)
        for pid in self.pids:
            os.waitpid(pid, 0)


def _length(side: str) -> float:
    if side == "permit" and random.random() < 0.05:
        return LONG_ENOUGH_TO_RENEW
    return random.uniform(0, LONGEST_HOLD[side])


@contextmanager
def _crowd(events: Path) -> Iterator[Crowd]:
    crowd = Crowd(Log(events), *os.pipe())
    try:
        yield crowd
    finally:
        crowd.end()
        crowd.log.read()


class Log:
    """Events of many processes in one file. Whoever is killed leaves what it has written."""

    def __init__(self, path: Path) -> None:
        self._writes = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._reads = path.open()
        self._rest = ""
        self._events: list[dict[str, Any]] = []
        self._last: dict[int, str] = {}

    def write(self, what: str, side: str = "", *, pid: int | None = None, **facts: Any) -> None:
        event = {"pid": pid or os.getpid(), "what": what, "side": side, "at": time.monotonic()}
        os.write(self._writes, (json.dumps(event | facts) + "\n").encode())

    def read(self) -> list[dict[str, Any]]:
        *lines, self._rest = (self._rest + self._reads.read()).split("\n")
        for line in lines:
            event = json.loads(line)
            self._events.append(event)
            self._last[event["pid"]] = event["what"]
        return self._events

    def last_of_each(self) -> dict[int, str]:
        self.read()
        return self._last

    def holds(self) -> list[Hold]:
        open_ones: dict[int, dict[str, Any]] = {}
        holds = []
        for event in self._events:
            pid, what, at = event["pid"], event["what"], event["at"]
            if what in ("asks", "entered"):
                open_ones[pid] = open_ones.get(pid, {}) | event | {what: at}
            elif (begun := open_ones.pop(pid, {})) and "entered" in begun:
                holds.append(_hold(begun, at))
        return holds

    def troubles(self) -> list[str]:
        return [event["error"] for event in self._events if event["what"] == "trouble"]


def _hold(begun: dict[str, Any], leaves: float) -> Hold:
    times = begun["asks"], begun.get("queued"), begun["entered"], leaves
    return Hold(begun["pid"], begun["side"], *times, begun["fence"])


# Since when one stands in the queue: nobody outside sees it, but it was told so before it
# sits down to wait.


class Place:
    """This process's place in the queue, as it must be from what it sends."""

    def __init__(self) -> None:
        self.leave()

    def leave(self) -> None:
        self.since: float | None = None
        self._asked = self._showed_life = time.monotonic()

    def sends(self, command: bytes) -> None:
        now = time.monotonic()
        if b"EVAL" in command:
            self._asked = now
        elif b"BLPOP" in command:
            self._waits(now)

    def _waits(self, now: float) -> None:
        from django_redislock.engine.flows import ALIVE

        if self.since is None or now - self._showed_life > ALIVE:  # else passed over, maybe
            self.since = now
        self._showed_life = self._asked


place = Place()


class Watched(redis.Connection):
    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        place.sends(command if isinstance(command, bytes) else b"".join(command))
        super().send_packed_command(command, check_health)


if __name__ == "__main__":
    sys.exit(main())
