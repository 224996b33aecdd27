"""Many sends, few keys, and processes that are killed all the time: nothing is lost, and never
are there two at once."""

import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from django_redislock import locks
from testproject.settings import redis_database
from tests.tools import ROOT, Child, wait_until

from . import load_app
from .load_app import CHILDREN, DEATH, KILLED, ids_of, register_of, tell

WORKERS, KEYS, SENDERS = 4, 50, 2
CALM_WITHIN = 60
"""Seconds after the last send and the last kill."""

ENDS = ("end", "skipped", "replaced")
"""How a send can come to its end."""

STANDS_STILL_AT_MOST = load_app.LEASE / 2
"""Seconds without anything about a key while there is something to do for it. A lock that
nobody freed would do so for its lease; less than this tells how far a busy machine is behind."""

pytestmark = [
    pytest.mark.celery,
    pytest.mark.slow,
    pytest.mark.timeout(800),
    # Celery 5.4 with redis-py 8.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


class Fleet:
    """Workers on one queue, and what is known of them in Redis."""

    def __init__(self, folder: Path) -> None:
        self.queue = f"load-{uuid.uuid4().hex}"
        self.folder = folder
        self.names = [f"{self.queue}-{number}@load" for number in range(WORKERS)]
        self.processes = [self._start(name) for name in self.names]
        self.broker = redis.Redis.from_url(redis_database(1), decode_responses=True)
        self.notes = load_app.notes()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.celery.load_app", "worker"),
                    *("--concurrency", "4", "--queues", self.queue, "--hostname", name),
                    *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
                ],
                cwd=ROOT,
                env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def logged(self, *texts: str) -> list[str]:
        logs = [(self.folder / f"{name}.log").read_text() for name in self.names]
        lines = [line for log in logs for line in log.splitlines()]
        return [line for line in lines if all(text in line for text in texts)]

    def children(self) -> list[int]:
        return [pid for pid in map(int, self.notes.smembers(CHILDREN)) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            return os.getsid(pid) in [process.pid for process in self.processes]
        except ProcessLookupError:
            return False

    def is_complete(self) -> bool:
        return len(self.children()) == WORKERS * 4

    def kill(self, pid: int, run: str) -> None:
        # Stopped first, so that its death is noted before anything that follows from it.
        os.kill(pid, signal.SIGSTOP)
        tell(run, DEATH, "killed", "-", "-", pid=pid)
        self.notes.srem(CHILDREN, pid)
        os.kill(pid, signal.SIGKILL)

    def waits(self) -> dict[str, int]:
        """What the broker still has, queued or delivered."""
        keys = {key: self.broker.type(key) for key in self.broker.scan_iter(f"{self.queue}*")}
        left = {key: self.broker.llen(key) for key, kind in keys.items() if kind == "list"}
        return left | {"unacked": self.broker.hlen("unacked")}

    def is_calm(self) -> bool:
        """Nothing is left to do. Looks twice: what is put back into its queue is, for an
        instant, nowhere."""
        looks = [self.waits() for _ in range(2) if not threading.Event().wait(0.1)]
        return not any(number for look in looks for number in look.values())

    def busy(self) -> list[object]:
        """What the workers say that they have; all of them have to answer."""
        inspect = load_app.app.control.inspect(self.names, timeout=10, limit=WORKERS)
        told = [ask() or {} for ask in (inspect.active, inspect.reserved, inspect.scheduled)]
        assert [sorted(each) for each in told] == [sorted(self.names)] * 3
        return [item for each in told for items in each.values() for item in items]

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            self._end(process)
        self.notes.delete(CHILDREN, KILLED)
        self.notes.close()
        self.broker.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        wait_until(fleet.is_complete, timeout=60, interval=0.1)
        yield fleet
    finally:
        fleet.stop()


class Killer(threading.Thread):
    """Kills a process about every second: any one, and in turn one that just runs a task."""

    def __init__(self, fleet: Fleet, run: str, seed: int) -> None:
        super().__init__()
        self.kills = 0
        self._fleet, self._of, self._random = fleet, run, random.Random(seed)
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.wait(self._random.uniform(0.5, 1.5)):
            self._kill_one()

    def enough(self) -> None:
        self._enough.set()
        self.join()

    def _kill_one(self) -> None:
        found = self._fleet.children()
        at_work = [pid for pid in self._at_work() if pid in found]
        if victims := (at_work if self.kills % 2 else None) or found:
            self._fleet.kill(self._random.choice(sorted(victims)), self._of)
            self.kills += 1

    def _at_work(self) -> list[int]:
        inside = self._fleet.notes.hvals(register_of(self._of))
        return [int(text.partition("/")[0]) for text in inside]


@dataclass(frozen=True)
class Note:
    at: float
    """Seconds, by the clock of Redis."""

    word: str
    key: str
    send: str
    pid: str
    fence: str

    @classmethod
    def of(cls, text: str) -> "Note":
        at, *words = text.split()
        return cls(int(at) / 1000, *words)

    @property
    def execution(self) -> tuple[str, str]:
        return self.pid, self.send


class Story:
    """All that was noted of a run, and what it says."""

    def __init__(self, texts: list[str], ids: dict[str, str]) -> None:
        # Who replaces a task knows its id alone.
        notes = [Note.of(text) for text in texts]
        self.notes = [replace(note, send=ids.get(note.send, note.send)) for note in notes]
        self.of_key: dict[str, list[Note]] = defaultdict(list)
        for note in self.notes:
            if note.word != "killed":
                self.of_key[note.key].append(note)

    def all(self, word: str) -> list[Note]:
        return [note for note in self.notes if note.word == word]

    def sends(self, word: str) -> set[str]:
        return {note.send for note in self.all(word)}

    def ended(self) -> set[str]:
        return {note.send for note in self.notes if note.word in ENDS}

    def ended_twice(self) -> set[str]:
        """The sends that ran to the end twice, or did although they were skipped or replaced."""
        ran = Counter(note.send for note in self.all("end"))
        twice = {send for send, times in ran.items() if times > 1}
        return twice | (set(ran) & (self.sends("skipped") | self.sends("replaced")))

    def two_at_once(self) -> list[tuple[Note, Note]]:
        """Executions that began while another of their key had not ended, nor its process been
        killed."""
        inside: dict[str, Note] = {}
        killed: set[str] = set()
        found = []
        for note in self.notes:
            before = inside.get(note.key)
            if note.word == "killed":
                killed.add(note.pid)
            elif note.word == "begin":
                if before and before.pid not in killed:
                    found.append((before, note))
                inside[note.key] = note
            elif note.word == "end" and before and before.execution == note.execution:
                del inside[note.key]
        return found

    def struck(self) -> list[str]:
        """The sends of the executions that were killed."""
        begun = Counter(note.execution for note in self.all("begin"))
        ended = Counter(note.execution for note in self.all("end"))
        return [send for _, send in (begun - ended).elements()]

    def given_up(self) -> set[str]:
        """The sends that had begun and were killed, and whose work was not done again."""
        return set(self.struck()) - self.sends("end") - self.sends("replaced")

    def fences(self) -> Iterator[tuple[int, int]]:
        """The fencing tokens of each two executions of a key that followed each other."""
        for notes in self.of_key.values():
            yield from pairwise(int(note.fence) for note in notes if note.word == "begin")

    def longest_still(self) -> float:
        """For how many seconds nothing was heard of a key for which there was something to do."""
        return max(map(_longest_still, self.of_key.values()))


def _longest_still(notes: list[Note]) -> float:
    to_do: set[str] = set()
    longest = 0.0
    for note, after in pairwise(notes):
        if note.word == "sent":
            to_do.add(note.send)
        elif note.word in ENDS:
            to_do.discard(note.send)
        if to_do:
            longest = max(longest, after.at - note.at)
    return longest


def run_load(fleet: Fleet, mode: str, sends: int, seconds: float) -> tuple[str, Story, int]:
    run, seed = f"run-{uuid.uuid4().hex[:12]}", random.randrange(10**6)
    print(f"\n{mode}: seed {seed}, run {run}", flush=True)
    killer = Killer(fleet, run, seed)
    killer.start()
    try:
        _send(fleet, mode, run, sends, seconds)
    finally:
        killer.enough()
    try:
        wait_until(fleet.is_calm, timeout=CALM_WITHIN, interval=0.1)
    except AssertionError as error:
        raise AssertionError(f"stuck: {fleet.waits()}, {fleet.busy()}") from error
    return run, _story_of(fleet, run), killer.kills


def _story_of(fleet: Fleet, run: str) -> Story:
    story = Story(fleet.notes.lrange(run, 0, -1), fleet.notes.hgetall(ids_of(run)))
    fleet.notes.delete(run, ids_of(run), register_of(run))
    return story


def _send(fleet: Fleet, mode: str, run: str, sends: int, seconds: float) -> None:
    code = "import sys; from tests.celery.load_app import main; main(*sys.argv[1:]); say('sent')"
    orders = map(str, (mode, run, fleet.queue, sends // SENDERS, KEYS, seconds))
    arguments = list(orders)
    with ExitStack() as stack:
        children = [stack.enter_context(Child(code, *arguments)) for _ in range(SENDERS)]
        for child in children:
            child.expect("sent", timeout=seconds + 60)


FULL, SHORT = (5000, 60), (1650, 20)
"""Sends, and the seconds for them."""


@pytest.mark.parametrize(
    ("mode", "sends", "seconds"),
    [
        # Without a lock: Celery itself loses nothing here, whichever processes are killed.
        ("plain", *SHORT),
        ("retry", *FULL),
        ("skip", *SHORT),
        ("until_executed", *SHORT),
        ("replace", *SHORT),
    ],
)
def test_load(fleet, mode, sends, seconds):
    run, story, kills = run_load(fleet, mode, sends, seconds)
    show(story, kills, released=len(fleet.logged("Lock released for dead process", run)))
    assert story.two_at_once() == []
    assert story.all("both") == []
    assert len(story.sends("sent")) == sends
    assert story.ended() == story.sends("sent")
    assert story.given_up() == set()
    assert len(story.ended_twice()) <= kills
    if mode != "plain":
        assert all(one < other for one, other in story.fences())
    assert story.longest_still() < STANDS_STILL_AT_MOST
    assert [info.name for info in locks.active(f"*{run}*")] == []
    assert fleet.busy() == []
    wait_until(fleet.is_complete, timeout=60)


def show(story: Story, kills: int, *, released: int) -> None:
    figures = {
        "sends": len(story.sends("sent")),
        "ran": len(story.sends("end")),
        "skipped": len(story.sends("skipped")),
        "replaced": len(story.sends("replaced")),
        "kills": kills,
        "of tasks": len(story.struck()),
        "released in their stead": released,
        "not run again": len(story.given_up()),
        "ran twice": len(story.ended_twice()),
        "both": len(story.all("both")) + len(story.two_at_once()),
        "longest still": f"{story.longest_still():.2f} s",
    }
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
