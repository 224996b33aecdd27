"""`manage.py locks show`. `tests/fast/unit/test_advice.py` has what it says about a hold."""

import json
import os
import re
import shlex
from contextlib import suppress

import pytest

from django_redislock import LockNotOwnedError, locks
from tests.commands import call, run
from tests.lock_tools import start, waiting
from tests.pages import postpone

from .conftest import acquire_and_release, facts, held_by_task


def test_show_of_a_renewed_lock(hold):
    lock = hold("invoice:42", metadata={"customer": "c-1"})

    done = run("show", "invoice:42")

    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert re.fullmatch(rf"invoice:42 \(mutex\): held, \S+:{os.getpid()} for [\d.]+s", first)
    assert f"  Fencing token {lock.fence_token}" in lines
    assert '  Metadata      {"customer": "c-1"}' in lines
    assert lock.token not in done.stdout


def test_show_of_a_stale_lock_ends_with_the_next_step(redis_server, hold):
    hold("it's stuck", timeout=90)
    postpone(redis_server, "it's stuck", seconds=60)

    shown, known = call("show", "it's stuck"), facts("show", "it's stuck")

    start = r"it's stuck \(mutex\): stale, \S+ for 1m 0\ds\nRenewal overdue for 3\ds: "
    assert re.match(start, shown)
    assert "\nIf the process is gone, run: manage.py locks release" in shown
    assert (known["state"], known["holders"][0]["is_stale"]) == ("stale", True)


def test_show_has_all_holders_and_the_queue_in_its_order(nothing_left_behind):
    with locks.semaphore("export", 2), locks.semaphore("export", 2, metadata={"n": 1}):
        first = start(acquire_and_release, locks.semaphore("export", 2, metadata={"n": 2}))
        waiting(locks, "export", 1)
        second = start(acquire_and_release, locks.semaphore("export", 2, weight=2))
        waiting(locks, "export", 2)
        text, known = call("show", "export"), facts("show", "export")

    assert (first.result(60), second.result(60)) == (True, True)
    assert text.count("\nHolder ") == 2
    assert "\n2 waiters\n" in text
    assert [waiter["weight"] for waiter in known["queue"]] == [1, 2]
    assert len(known["holders"]) == known["waiters"] == 2


def test_show_of_a_free_lock_has_its_latest_events(empty_history):
    acquire_and_release(locks.lock("done"))

    shown = call("show", "done")

    assert shown.startswith("done is free. Its history is below.\n")
    assert re.search(r"\nHistory\n.*\n.*  released  done  ", shown)
    assert facts("show", "done")["history"][0]["outcome"] == "released"


def test_show_of_a_queued_task():
    with held_by_task("sync:7", metadata={"queued": True, "broker_queue": "slow"}):
        shown, known = call("show", "sync:7"), facts("show", "sync:7")

    assert known["state"] == "queued"
    assert re.match(r"sync:7 \(mutex\): queued for [\d.]+s, sent by \S+\nQueued: the task", shown)
    assert re.search(r"\n  Broker queue +slow\n", shown)


def test_show_of_an_unknown_lock_is_exit_1(empty_history):
    error = "CommandError: no\\u202esuch is not held, and has no history\n"

    assert run("show", "no\u202esuch") == (1, "", error)
    as_json = run("show", "no\u202esuch", "--format", "json")

    assert (as_json.returncode, as_json.stderr) == (1, error)
    assert json.loads(as_json.stdout)["state"] == "free"


def run_last_line_of(shown: str) -> None:
    """Run the command that releases the lock, as the last line of the text has it."""
    subcommand, *arguments = shlex.split(shown.rpartition("run: manage.py locks ")[2])
    assert run(subcommand, "--yes", *arguments).returncode == 0


@pytest.mark.parametrize("name", ["-x", "it's"])
def test_the_release_command_can_be_run_as_it_is_and_spares_others(redis_server, hold, name):
    manager = locks.using("django_redis")
    hold("another lock", manager, auto_renewal=False)
    hold(name, manager, auto_renewal=False)
    run_last_line_of(call("show", "--using=django_redis", "--", name))
    assert [each.name for each in manager.active()] == ["another lock"]

    with suppress(LockNotOwnedError), locks.semaphore(name, 2, timeout=90):
        postpone(redis_server, name, seconds=60)
        with locks.semaphore(name, 2, timeout=90) as alive:
            run_last_line_of(call("show", "--", name))
            assert alive.owned()
