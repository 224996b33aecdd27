"""Three processes stand for leader while they are killed, stopped and terminated, and Redis is
restarted and paused."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from django_redislock.testing import EmbeddedServer
from tests.tools import ROOT, wait_until

pytestmark = pytest.mark.timeout(300)

LEASE = 2.0

SECONDS = float(os.environ.get("LEADERS_SECONDS", "15"))

AFTER_KILL = LEASE + 1
AFTER_TERM = 1.0

SLACK = 30
"""Seconds more for a machine that others use too. Alone, it is less than a tenth."""


class Note(NamedTuple):
    at: float
    pid: int
    token: int
    word: str


class Candidates:
    """The processes, and the file with what they did."""

    def __init__(self, server: EmbeddedServer, file: Path) -> None:
        self.server = server
        self.redis = redis.Redis.from_url(server.url)
        self.file = file
        self.file.touch()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.stops: list[tuple[int, float, float]] = []
        self.takeovers: dict[str, list[float]] = {}

    def start(self, mode: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.full.leaders.standing", self.file, str(LEASE), mode],
            cwd=ROOT,
            env=os.environ
            | {"DJANGO_SETTINGS_MODULE": "tests.settings", "REDIS_URL": self.server.url},
        )
        self.processes[process.pid] = process
        # Before it has reached the server, it would end with an error if the server is away.
        wait_until(lambda: self.queued() >= len(self.processes) - 1)

    def queued(self) -> int:
        """Return how many candidates wait."""
        return sum(self.redis.zcard(key) for key in self.redis.scan_iter("*:queue:poller"))

    def notes(self) -> list[Note]:
        notes = []
        for line in self.file.read_text().splitlines():
            at, pid, token, word = line.split()
            notes.append(Note(float(at), int(pid), int(token), word))
        return notes

    def leader(self) -> Note:
        """The latest term, once its leader works."""

        def working() -> Note | None:
            notes = self.notes()
            terms = [each for each in notes if each.word == "begin"]
            return next((each for each in terms[-1:] if each.pid in self.processes), None)

        return wait_until(working)

    def next_term(self, after: Note, what: str, began: float) -> Note:
        """The first term after another one, and record how long that took."""

        def newer() -> Note | None:
            terms = [each for each in self.notes() if each.word == "begin"]
            return next((each for each in terms if each.token > after.token), None)

        term = wait_until(newer)
        self.takeovers.setdefault(what, []).append(term.at - began)
        return term

    def end(self, pid: int, number: int) -> int:
        process = self.processes.pop(pid)
        process.send_signal(number)
        return process.wait(60)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.redis.close()

    def late_work(self) -> list[Note]:
        """The work in a term after a later one has begun."""
        late, newest = [], 0
        for note in sorted(self.notes()):
            if note.word == "begin":
                assert note.token > newest
                newest = note.token
            elif note.token < newest and note.word == "work":
                late.append(note)
        return late

    def was_stopped(self, note: Note) -> bool:
        """Whether the process had just been stopped, so that it had no time to look at `lost`."""
        return any(
            pid == note.pid and until <= note.at < until + SLACK for pid, _, until in self.stops
        )


@pytest.fixture
def candidates(tmp_path):
    with EmbeddedServer(appendonly="yes", appendfsync="always") as server:
        candidates = Candidates(server, tmp_path / "notes")
        try:
            yield candidates
        finally:
            candidates.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_there_is_one_term_at_a_time_whatever_happens(candidates, mode):
    for _ in range(3):
        candidates.start(mode)
    until = time.monotonic() + SECONDS
    faults = [kill, terminate, stop, restart_redis, pause_redis]
    rounds = 0
    while time.monotonic() < until:
        for fault in random.sample(faults, len(faults)):
            fault(candidates, mode)
        rounds += 1
    late = candidates.late_work()
    notes = candidates.notes()
    print(
        f"\n{mode}: {rounds} rounds, {sum(n.word == 'begin' for n in notes)} terms, "
        f"{sum(n.word == 'work' for n in notes)} pieces of work, {len(late)} late"
    )
    for what, seconds in sorted(candidates.takeovers.items()):
        print(f"  {what}: {len(seconds)} times, longest takeover {max(seconds):.2f} s")
    assert all(map(candidates.was_stopped, late)), late
    assert max(candidates.takeovers["SIGKILL"]) < AFTER_KILL + SLACK
    assert max(candidates.takeovers["SIGTERM"]) < AFTER_TERM + SLACK


def kill(candidates: Candidates, mode: str) -> None:
    leader = candidates.leader()
    began = time.monotonic()
    candidates.end(leader.pid, signal.SIGKILL)
    candidates.next_term(leader, "SIGKILL", began)
    candidates.start(mode)


def terminate(candidates: Candidates, mode: str) -> None:
    leader = candidates.leader()
    began = time.monotonic()
    status = candidates.end(leader.pid, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    candidates.next_term(leader, "SIGTERM", began)
    candidates.start(mode)


def stop(candidates: Candidates, mode: str) -> None:
    leader = candidates.leader()
    process = candidates.processes[leader.pid]
    began = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    candidates.next_term(leader, "SIGSTOP", began)
    candidates.stops.append((leader.pid, began, time.monotonic()))
    process.send_signal(signal.SIGCONT)


def restart_redis(candidates: Candidates, mode: str) -> None:
    """The server keeps its data. It is away for less than a lease."""
    leader = candidates.leader()
    candidates.server.stop()
    candidates.server.start()
    wait_for_work(candidates, leader)


def pause_redis(candidates: Candidates, mode: str) -> None:
    """The server does not respond for longer than a lease, so the leader is deposed."""
    leader = candidates.leader()
    os.kill(candidates.server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: time.monotonic() - last_work(candidates) > LEASE / 2)
    finally:
        began = time.monotonic()
        os.kill(candidates.server.pid, signal.SIGCONT)
    candidates.next_term(leader, "pause of Redis", began)


def last_work(candidates: Candidates) -> float:
    return max(each.at for each in candidates.notes() if each.word == "work")


def wait_for_work(candidates: Candidates, leader: Note) -> None:
    """Return when somebody works after now."""
    now = time.monotonic()
    wait_until(lambda: last_work(candidates) > now)
