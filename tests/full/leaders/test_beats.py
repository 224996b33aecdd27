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


class Message(NamedTuple):
    task: str
    id: str
    pid: int


class Beats:
    """The processes, and the messages that they sent."""

    def __init__(self, server: EmbeddedServer, folder: Path, scheduler: str, **env: str) -> None:
        self.scheduler = scheduler
        self.folder = folder
        self.env = {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "REDIS_URL": server.url,
            **env,
        }
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.logs: dict[int, Path] = {}
        self.locks = redis.Redis.from_url(server.url, decode_responses=True)
        self.broker = redis.Redis.from_url(f"{server.url[:-1]}1", decode_responses=True)

    def start(self, program: str = "beat", *arguments: str) -> int:
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
        return process.pid

    def wait_until_it_stands(self, pid: int) -> None:
        wait_until(lambda: re.search("Beat (leads|stands by)", self.logs[pid].read_text()))

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

    def record(self) -> dict[str, Run]:
        keys = list(self.locks.scan_iter(RECORD))
        fields = self.locks.hgetall(keys[0]) if keys else {}
        return {
            field.removeprefix("run:"): Run.parse(text)
            for field, text in fields.items()
            if field != "fence"
        }

    def close(self) -> None:
        for pid in list(self.processes):
            self.kill(pid)
        self.locks.close()
        self.broker.close()


@contextlib.contextmanager
def running(folder: Path, scheduler: str, **env: str) -> Iterator[Beats]:
    with EmbeddedServer(appendonly="yes") as server:
        beats = Beats(server, folder, scheduler, **env)
        try:
            yield beats
        finally:
            beats.close()


@pytest.fixture
def beats(tmp_path):
    with running(tmp_path, "PersistentScheduler") as beats:
        yield beats


def kill_leaders(beats: Beats, between=lambda: None) -> list[int]:
    """Kill the leader at random times, while ticks are sent. Return the pids of those killed."""
    killed = []
    while len(beats.sent("beats.second")) < TICKS:
        if len(killed) < KILLS:
            next_kill = len(killed) * TICKS / (KILLS + 1) + random.uniform(0, TICKS / (KILLS + 1))
            wait_until(lambda count=next_kill: len(beats.sent("beats.second")) >= count)
            time.sleep(random.uniform(0, 1))  # any moment between two ticks
            between()
            leader = beats.leader()
            beats.kill(leader)
            killed.append(leader)
            beats.start()
        else:
            count = len(beats.sent("beats.second"))
            wait_until(lambda count=count: len(beats.sent("beats.second")) > count)
    return killed


def was_unrecorded(messages: list[Message], place: int, killed: list[int]) -> bool:
    """Whether a beat was killed after it had sent a message and before it had recorded that.

    A beat records each message before it sends the next one, so this can only be its last one.
    """
    sender = messages[place].pid
    return sender in killed and all(each.pid != sender for each in messages[place + 1 :])


def assess(beats: Beats, entries: dict[str, str], killed: list[int]) -> None:
    """Compare the messages with the record: each run has exactly one task id."""
    beats.terminate(beats.leader())
    for pid in list(beats.processes):
        beats.terminate(pid)
    record = beats.record()
    messages = beats.messages()
    for entry, task in entries.items():
        ids = [each.id for each in messages if each.task == task]
        twice = [task_id for task_id, times in Counter(ids).items() if times > 1]
        print(
            f"  {entry}: {len(ids)} messages, {record[entry].count} runs recorded, "
            f"{len(twice)} sent twice"
        )
        for task_id in twice:
            senders = [each.pid for each in messages if each.id == task_id]
            print(f"    {task_id} by {senders}, killed: {[pid in killed for pid in senders]}")
            places = [n for n, each in enumerate(messages) if each.id == task_id]
            for place in places[:-1]:
                assert was_unrecorded(messages, place, killed), task_id
        # The runs of an entry have one task id each, and none is missing.
        assert len(set(ids)) == record[entry].count


ENTRIES = {
    "every second": "beats.second",
    "every five seconds": "beats.five",
    "every minute": "beats.minute",
}


def test_each_tick_is_sent_once_although_leaders_are_killed(beats):
    for _ in range(3):
        beats.wait_until_it_stands(beats.start())
    began = time.monotonic()
    killed = kill_leaders(beats)
    print(f"\n{len(killed)} leaders killed in {time.monotonic() - began:.0f} s")
    assess(beats, ENTRIES, killed)


@pytest.mark.parametrize("die_after", [1, 3])
def test_only_what_a_killed_leader_had_not_recorded_is_sent_again(tmp_path, die_after):
    """Each leader is killed right after it has sent its first, or its third, message.

    What the next leader sends again can be the message after which that one is killed, too. So
    several leaders in a row can send the same message.
    """
    with running(tmp_path, "PersistentScheduler", BEATS_DIE_AFTER=str(die_after)) as beats:
        killed = []
        for _ in range(3):
            beats.wait_until_it_stands(beats.start())
        while len(killed) < 5:
            leader = beats.leader()
            beats.processes.pop(leader).wait(60)
            killed.append(leader)
            beats.start()
        died_by_itself = killed.copy()
        beats.env["BEATS_DIE_AFTER"] = "0"
        beats.wait_until_it_stands(beats.start())
        for pid in [*beats.processes][:-1]:
            beats.kill(pid)
            killed.append(pid)
        count = len(beats.messages())
        wait_until(lambda: len(beats.messages()) > count + 2)
        print()
        assess(beats, ENTRIES, killed)
        messages = beats.messages()
        for pid in died_by_itself:
            *recorded, unrecorded = [each for each in messages if each.pid == pid]
            assert len(recorded) == die_after - 1
            later = [each.id for each in messages[messages.index(unrecorded) + 1 :]]
            assert unrecorded.id in later
            assert not any(each.id in later for each in recorded)


def test_another_beat_leads_at_once_after_sigterm(tmp_path):
    with running(tmp_path, "PersistentScheduler", BEATS_LEASE="600") as beats:
        first = beats.start()
        beats.wait_until_it_stands(first)
        second = beats.start()
        beats.wait_until_it_stands(second)
        assert beats.leader() == first
        assert beats.terminate(first) == 0
        assert beats.leader() == second  # long before the lease of the first one would expire


def test_another_beat_leads_after_a_stop_and_the_old_leader_stands_by(beats):
    first = beats.start()
    beats.wait_until_it_stands(first)
    second = beats.start()
    beats.wait_until_it_stands(second)
    os.kill(first, signal.SIGSTOP)
    try:
        wait_until(lambda: beats.leader() == second)
    finally:
        os.kill(first, signal.SIGCONT)
    wait_until(lambda: "Beat stands by" in beats.logs[first].read_text())
    assert beats.processes[first].poll() is None
    ids = beats.sent("beats.second")
    wait_until(lambda: len(beats.sent("beats.second")) >= len(ids) + 3)
    assert len(set(beats.sent("beats.second"))) == len(beats.sent("beats.second"))


def test_the_beat_of_a_worker_takes_part_and_hands_over(tmp_path):
    with running(tmp_path, "PersistentScheduler", BEATS_LEASE="600") as beats:
        worker = beats.start("worker", "-B", "--pool", "prefork", "--concurrency", "1")
        beats.wait_until_it_stands(worker)
        second = beats.start()
        beats.wait_until_it_stands(second)
        beats.processes[worker].terminate()  # it takes some seconds until its beat is told
        wait_until(lambda: LEADS.search(beats.logs[second].read_text()))
        beats.terminate(worker)


def test_a_standby_goes_on_after_an_outage(tmp_path):
    with EmbeddedServer(appendonly="yes", appendfsync="always") as server:
        beats = Beats(server, tmp_path, "PersistentScheduler")
        try:
            for _ in range(2):
                beats.wait_until_it_stands(beats.start())
            count = wait_until(lambda: len(beats.sent("beats.second")))
            server.stop()
            server.start()
            wait_until(lambda: len(beats.sent("beats.second")) > count + 2)
            assert all(process.poll() is None for process in beats.processes.values())
            beats.kill(beats.leader())
            count = len(beats.sent("beats.second"))
            wait_until(lambda: len(beats.sent("beats.second")) > count + 2)
        finally:
            beats.close()
