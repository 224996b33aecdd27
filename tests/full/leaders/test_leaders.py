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

SLACK = 30
"""Seconds that a busy machine may need until a process that was stopped looks at `lost`."""


class Note(NamedTuple):
    at: float
    pid: int
    token: int
    word: str


class Candidates:
    """The processes, and the file with what they did."""

    def __init__(self, server: EmbeddedServer, file: Path, mode: str) -> None:
        self.server = server
        self.redis = redis.Redis.from_url(server.url)
        self.file = file
        self.file.touch()
        self.mode = mode
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.continued: list[tuple[int, float]] = []
        """The processes that were stopped, and when they continued."""

    def start(self) -> None:
        own = {"DJANGO_SETTINGS_MODULE": "tests.settings", "REDIS_URL": self.server.url}
        program = [sys.executable, "-m", "tests.full.leaders.standing"]
        process = subprocess.Popen(
            [*program, self.file, str(LEASE), self.mode], cwd=ROOT, env=os.environ | own
        )
        self.processes[process.pid] = process
        # Before it has reached the server, it would end with an error if the server is away.
        wait_until(lambda: self.queued() >= len(self.processes) - 1)

    def queued(self) -> int:
        """Return how many candidates wait."""
        return sum(self.redis.zcard(key) for key in self.redis.scan_iter("*:queue:poller"))

    def notes(self, word: str) -> list[Note]:
        notes = []
        for line in self.file.read_text().splitlines():
            at, pid, token, what = line.split()
            notes.append(Note(float(at), int(pid), int(token), what))
        return [each for each in notes if each.word in word.split()]

    def leader(self) -> Note:
        """The begin of the latest term, once its leader is one of the processes."""

        def leading() -> Note | None:
            latest = self.notes("begin")[-1:]
            return latest[0] if latest and latest[0].pid in self.processes else None

        return wait_until(leading)

    def wait_for_a_term_after(self, term: Note) -> None:
        wait_until(lambda: self.notes("begin")[-1].token > term.token)

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

    # Faults

    def kill(self) -> None:
        leader = self.leader()
        self.end(leader.pid, signal.SIGKILL)
        self.wait_for_a_term_after(leader)
        self.start()

    def terminate(self) -> None:
        leader = self.leader()
        assert self.end(leader.pid, signal.SIGTERM) == 128 + signal.SIGTERM
        self.wait_for_a_term_after(leader)
        self.start()

    def stop(self) -> None:
        leader = self.leader()
        process = self.processes[leader.pid]
        process.send_signal(signal.SIGSTOP)
        self.wait_for_a_term_after(leader)
        self.continued.append((leader.pid, time.monotonic()))
        process.send_signal(signal.SIGCONT)

    def restart_redis(self) -> None:
        """The server keeps its data. It is away for less than a lease."""
        self.leader()
        self.server.stop()
        self.server.start()
        now = time.monotonic()
        wait_until(lambda: self.last_work() > now)

    def pause_redis(self) -> None:
        """The server does not respond for longer than a lease, so the leader is deposed."""
        leader = self.leader()
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: time.monotonic() - self.last_work() > LEASE / 2)
        finally:
            os.kill(self.server.pid, signal.SIGCONT)
        self.wait_for_a_term_after(leader)

    def last_work(self) -> float:
        return max((each.at for each in self.notes("work")), default=0)

    # What they did

    def late_work(self) -> list[Note]:
        """The work in a term after a later one has begun."""
        late, newest = [], 0
        for note in sorted(self.notes("begin work")):
            if note.word == "begin":
                assert note.token > newest
                newest = note.token
            elif note.token < newest:
                late.append(note)
        return late

    def had_no_time_to_look(self, note: Note) -> bool:
        """Whether the process had just been stopped, before it looked at `lost`."""
        return any(pid == note.pid and at <= note.at < at + SLACK for pid, at in self.continued)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_there_is_one_term_at_a_time_whatever_happens(tmp_path, mode):
    with EmbeddedServer(appendonly="yes", appendfsync="always") as server:
        candidates = Candidates(server, tmp_path / "notes", mode)
        faults = [
            candidates.kill,
            candidates.terminate,
            candidates.stop,
            candidates.restart_redis,
            candidates.pause_redis,
        ]
        try:
            for _ in range(3):
                candidates.start()
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                for fault in random.sample(faults, len(faults)):
                    fault()
        finally:
            candidates.close()
    late = candidates.late_work()
    assert all(map(candidates.had_no_time_to_look, late)), late
