"""Three beats as processes. The leader is killed again and again, and one of the others
continues."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from django_redislock.celery.last_runs import Run
from django_redislock.testing import EmbeddedServer
from tests.tools import ROOT, wait_until

from .beat_app import QUEUE

pytestmark = pytest.mark.timeout(400)

TICKS = int(os.environ.get("BEATS_TICKS", "30"))
KILLS = int(os.environ.get("BEATS_KILLS", "3"))

RECORD = "*}:beat:beat:beats"

LEADS = re.compile(r"Beat leads: .* fence_token=(\d+)")

ENTRIES = {
    "every second": "beats.second",
    "every five seconds": "beats.five",
    "every minute": "beats.minute",
}


class Message(NamedTuple):
    task: str
    id: str
    pid: int


class Beats:
    """The processes, and the messages that they sent."""

    def __init__(self, server: EmbeddedServer, folder: Path, scheduler: str, **env: str) -> None:
        self.server = server
        self.scheduler = scheduler
        self.folder = folder
        self.env = {"DJANGO_SETTINGS_MODULE": "tests.settings", "REDIS_URL": server.url, **env}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.logs: dict[int, Path] = {}
        self.killed: list[int] = []
        self.locks = redis.Redis.from_url(server.url, decode_responses=True)
        self.broker = redis.Redis.from_url(f"{server.url[:-1]}1", decode_responses=True)

    def start(self, program: str = "beat", *arguments: str) -> int:
        """Start a beat, and return its pid once it leads or stands by."""
        log = self.folder / f"{time.monotonic_ns()}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.full.leaders.beat_app"),
                    *(program, "--scheduler", f"tests.full.leaders.beat_app:{self.scheduler}"),
                    *("--loglevel", "INFO", *arguments),
                ],
                cwd=ROOT,
                env=os.environ | self.env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[process.pid] = process
        self.logs[process.pid] = log
        wait_until(lambda: re.search("Beat (leads|stands by)", log.read_text()))
        return process.pid

    def leader(self) -> int:
        """The pid of the leader, once there is one that lives."""

        def find() -> int | None:
            terms = []
            for pid, log in self.logs.items():
                terms += [(int(token), pid) for token in LEADS.findall(log.read_text())]
            newest = max(terms, default=(0, 0))[1]
            return newest if newest in self.processes else None

        return wait_until(find)

    def kill(self, pid: int) -> None:
        process = self.processes.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        process.wait()
        self.killed.append(pid)

    def terminate(self, pid: int) -> int:
        process = self.processes.pop(pid)
        process.terminate()
        return process.wait(60)

    def messages(self) -> list[Message]:
        """The messages in the order in which they were sent."""
        found = []
        for text in reversed(self.broker.lrange(QUEUE, 0, -1)):
            headers = json.loads(text)["headers"]
            found.append(Message(headers["task"], headers["id"], headers["beat_pid"]))
        return found

    def sent(self, task: str) -> list[str]:
        """The task ids of its messages."""
        return [each.id for each in self.messages() if each.task == task]

    def wait_for_ticks(self, count: int) -> None:
        """Wait until so many more were sent."""
        before = len(self.sent("beats.second"))
        wait_until(lambda: len(self.sent("beats.second")) >= before + count)

    def runs(self) -> dict[str, int]:
        """How often each entry ran, as recorded."""
        [key] = self.locks.scan_iter(RECORD)
        fields = self.locks.hgetall(key)
        del fields["fence"]
        return {
            field.removeprefix("run:"): Run.parse(text).count for field, text in fields.items()
        }

    def close(self) -> None:
        for pid in list(self.processes):
            self.kill(pid)
        self.locks.close()
        self.broker.close()


@contextlib.contextmanager
def running(folder: Path, scheduler: str = "PersistentScheduler", **env: str) -> Iterator[Beats]:
    with EmbeddedServer(appendonly="yes", appendfsync="always") as server:
        beats = Beats(server, folder, scheduler, **env)
        try:
            yield beats
        finally:
            beats.close()


def kill_leaders(beats: Beats, between=lambda: None) -> None:
    """Kill the leader at random times, while ticks are sent."""
    for _ in range(3):
        beats.start()
    for _ in range(KILLS):
        beats.wait_for_ticks(random.randrange(TICKS // (KILLS + 1)))
        time.sleep(random.uniform(0, 1))  # any moment between two ticks
        between()
        beats.kill(beats.leader())
        beats.start()
    wait_until(lambda: len(beats.sent("beats.second")) >= TICKS)


def was_unrecorded(beats: Beats, messages: list[Message], place: int) -> bool:
    """Whether a beat was killed after it had sent a message and before it had recorded that.

    A beat records each message before it sends the next one, so this can only be its last one.
    """
    sender = messages[place].pid
    return sender in beats.killed and all(each.pid != sender for each in messages[place + 1 :])


def assess(beats: Beats) -> None:
    """Compare the messages with the record: each run has exactly one task id."""
    beats.terminate(beats.leader())
    for pid in list(beats.processes):
        beats.terminate(pid)
    runs = beats.runs()
    messages = beats.messages()
    for entry, task in ENTRIES.items():
        times = Counter(each.id for each in messages if each.task == task)
        assert len(times) == runs[entry]
        for task_id in times:
            places = [place for place, each in enumerate(messages) if each.id == task_id]
            for place in places[:-1]:
                assert was_unrecorded(beats, messages, place), task_id


def test_each_tick_is_sent_once_although_leaders_are_killed(tmp_path):
    with running(tmp_path) as beats:
        kill_leaders(beats)
        assess(beats)


@pytest.mark.parametrize("die_after", [1, 3])
def test_only_what_a_killed_leader_had_not_recorded_is_sent_again(tmp_path, die_after):
    """Each leader is killed right after it has sent its first, or its third, message.

    What the next leader sends again can be the message after which that one is killed, too. So
    several leaders in a row can send the same message.
    """
    with running(tmp_path, BEATS_DIE_AFTER=str(die_after)) as beats:
        for _ in range(3):
            beats.start()
        while len(beats.killed) < 5:
            leader = beats.leader()
            beats.processes.pop(leader).wait(60)
            beats.killed.append(leader)
            beats.start()
        died_by_itself = beats.killed.copy()
        beats.env["BEATS_DIE_AFTER"] = "0"
        beats.start()
        for pid in [*beats.processes][:-1]:
            beats.kill(pid)
        count = len(beats.messages())
        wait_until(lambda: len(beats.messages()) > count + 2)
        assess(beats)
        messages = beats.messages()
        for pid in died_by_itself:
            *recorded, unrecorded = [each for each in messages if each.pid == pid]
            assert len(recorded) == die_after - 1
            later = [each.id for each in messages[messages.index(unrecorded) + 1 :]]
            assert unrecorded.id in later
            assert not any(each.id in later for each in recorded)


WORKER = ("worker", "-B", "--pool", "prefork", "--concurrency", "1")


@pytest.mark.parametrize("program", [("beat",), WORKER], ids=["beat", "worker"])
def test_another_beat_leads_at_once_after_sigterm(tmp_path, program):
    with running(tmp_path, BEATS_LEASE="600") as beats:
        first = beats.start(*program)
        second = beats.start()
        assert beats.terminate(first) == 0
        wait_until(lambda: LEADS.search(beats.logs[second].read_text()))


def test_another_beat_leads_after_a_stop_and_the_old_leader_stands_by(tmp_path):
    with running(tmp_path) as beats:
        first, second = beats.start(), beats.start()
        os.kill(first, signal.SIGSTOP)
        try:
            wait_until(lambda: beats.leader() == second)
        finally:
            os.kill(first, signal.SIGCONT)
        wait_until(lambda: "Beat stands by" in beats.logs[first].read_text())
        assert beats.processes[first].poll() is None
        beats.wait_for_ticks(3)
        assert len(set(beats.sent("beats.second"))) == len(beats.sent("beats.second"))


def test_a_standby_goes_on_after_an_outage(tmp_path):
    with running(tmp_path) as beats:
        for _ in range(2):
            beats.start()
        beats.wait_for_ticks(1)
        beats.server.stop()
        beats.server.start()
        beats.wait_for_ticks(3)
        assert all(process.poll() is None for process in beats.processes.values())
        beats.kill(beats.leader())
        beats.wait_for_ticks(3)
