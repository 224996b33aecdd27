"""Two beats whose clocks differ send each job twice, and it runs once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

from django_redislock import locks
from tests.celery_worker import running_worker
from tests.programs import find
from tests.tools import ROOT, wait_until

from .beat_app import INTERVAL, SKEW

pytestmark = [pytest.mark.celery]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    with running_worker(folder, app="tests.full.workers.beat_app", concurrency=2) as worker:
        yield worker


@contextmanager
def beat(folder, name, queue, run, **environment):
    settings = {"TESTS_BEAT_RUN": run.id, "TESTS_BEAT_QUEUE": queue}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.full.workers.beat_app", "beat"),
                *("--schedule", str(folder / f"{name}.schedule"), "--pidfile", ""),
            ],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | settings | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def two_beats(folder, queue, run):
    # Its monotonic clock is ahead as well: else time.sleep, by which a beat waits, fails.
    ahead = {"LD_PRELOAD": find("libfaketime.so.1"), "FAKETIME": f"+{SKEW}s"}
    with beat(folder, "first", queue, run), beat(folder, "second", queue, run, **ahead):
        yield


def tick_of(text):
    """The tick to which a note belongs; it is sent from `SKEW` before until the tick itself."""
    moment = float(text.split()[-1])
    return round((moment + SKEW / 2) / INTERVAL)


def ticks(run, word):
    return Counter(tick_of(text) for text in run.notes(word))


TICKS = 3


def test_each_tick_of_two_beats_with_different_clocks_runs_once(worker, run, tmp_path):
    with two_beats(tmp_path, worker.queue, run):
        first = wait_until(lambda: met[0] if (met := sorted(ticks(run, "met"))) else 0, timeout=40)
        last = first + TICKS
        wait_until(lambda: ticks(run, "met")[last], timeout=(TICKS + 5) * INTERVAL, interval=0.1)
    seen = range(first + 1, last + 1)
    ran, met = ticks(run, "ran"), ticks(run, "met")
    assert [ran[tick] for tick in seen] == [1] * TICKS
    assert [met[tick] for tick in seen] == [1] * TICKS
    wait_until(lambda: locks.get(f"tick:{run.id}") is None)
