"""`manage.py locks release`."""

import getpass
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import pytest

from django_redislock import LockLost, locks
from django_redislock.advice import quorum_text
from django_redislock.lock_state import HELD, LATE, QUEUED, STALE
from django_redislock.management.subcommands import release
from django_redislock.signals import lock_force_released
from tests.commands import TerminalStream, call, run
from tests.lock_tools import listening
from tests.pages import acquired_before, postpone
from tests.tools import wait_until

from .conftest import held_by_task


def test_release_of_one(hold):
    lock = hold("invoice:42")

    done = run("release", "invoice:42", "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"Released invoice:42 (fencing token {lock.fence_token}, held by"
    )
    assert locks.get("invoice:42") is None


def test_name_that_is_not_held_is_exit_1(hold):
    hold("a")

    assert run("release", "a*", "--yes").returncode == 1
    assert locks.get("a")
    done = run("release", "a", "b", "--yes")

    assert done.returncode == 1
    assert "b is not held" in done.stderr
    assert locks.get("a") is None


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--pattern", "a?"], {"b1"}),
        (["--all"], set()),
        (["--older-than", "1h"], {"a1", "a2", "b1"}),
        (["--older-than", "0"], set()),
        (["--pattern", "a*", "--older-than", "5m"], {"a1", "a2", "b1"}),
    ],
)
def test_release_by_what_matches(hold, redis_server, arguments, left):
    for name in ("a1", "a2", "b1"):
        hold(name)
        acquired_before(redis_server, name, seconds=1)

    done = run("release", *arguments, "--yes")

    assert done.returncode == 0
    assert {info.name for info in locks.active()} == left
    assert ("No active lock matches." in done.stdout) == (len(left) == 3)


def test_older_than_counts_from_the_acquisition(hold, redis_server):
    hold("old")
    hold("new")
    acquired_before(redis_server, "old", seconds=60)

    named = run("release", "new", "--older-than", "50s", "--yes")
    call("release", "--all", "--older-than", "50s", "--yes")

    assert named.returncode == 1
    assert "new has no holder" in named.stderr
    assert [info.name for info in locks.active()] == ["new"]


def test_token_has_to_be_the_holders(hold):
    lock = hold("x")

    wrong = run("release", "x", "--token", "other", "--yes")
    unknown = run("release", "--token", "other", "--yes")
    assert (wrong.returncode, unknown.returncode, lock.owned()) == (1, 1, True)
    assert "has this token" in unknown.stderr
    right = run("release", "x", "--token", lock.token, "--yes")

    assert (right.returncode, lock.owned()) == (0, False)


def test_more_holders_than_a_user_can_confirm_need_yes(hold, monkeypatch):
    held = [hold("a"), hold("b")]
    monkeypatch.setattr(release, "MAX_CONFIRMED", 1)
    monkeypatch.setattr("sys.stdin", TerminalStream())

    done = run("release", "--all")

    assert (done.returncode, done.stdout) == (1, "")
    assert "more than 1 holders match. Use --yes" in done.stderr
    assert all(lock.owned() for lock in held)


def test_release_says_what_it_does_in_each_state(hold, monkeypatch):
    hold("x")
    with held_by_task("sync:7", metadata={"queued": True}):
        monkeypatch.setattr("sys.stdin", TerminalStream())
        monkeypatch.setattr("builtins.input", lambda prompt: "n")
        shown = run("release", "--all").stdout

    assert re.search(
        r"^To be released: sync:7 \(.*, queued by \S+, task sync \[id-1\] for ", shown, re.M
    )
    assert f"\nheld: {HELD.release}" in shown
    assert f"\nqueued: {QUEUED.release}" in shown


def test_a_released_holder_keeps_working_after_it_has_noticed():
    """This is what the command and the admin say about a release."""
    steps: list[bool] = []
    leave = Event()
    lock = locks.lock("x", timeout=1.5)

    def work():
        with lock:
            while not leave.wait(0.01):
                steps.append(bool(lock.lost))

    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        working = pool.submit(work)
        stack.callback(leave.set)
        wait_until(lambda: locks.get("x"))
        assert run("release", "x", "--yes").returncode == 0
        with locks.lock("x", blocking=False):
            wait_until(lambda: steps.count(True) > 10 or working.done())
            assert not working.done()
        leave.set()
        with pytest.raises(LockLost):
            working.result()
    assert all("keeps working" in state.release for state in (HELD, LATE, STALE))


def test_release_of_a_quorum_lock_says_that_it_is_on_several_servers(three_servers):
    quorum = locks.quorum("payout", three_servers, timeout=60)
    assert quorum.acquire()

    done, shown = call("release", "payout", "--yes"), call("show", "payout")

    assert done.endswith(f". {quorum_text()}\n")
    assert re.search(rf"^payout is free\. .*\n{quorum_text()}$", shown, re.M)
    assert quorum.owned()
    quorum.release()


def test_new_holder_is_not_released(hold, monkeypatch):
    old, new = hold("x"), []

    def confirm(prompt):
        old.release()
        new.append(hold("x"))
        return "y"

    monkeypatch.setattr("sys.stdin", TerminalStream())
    monkeypatch.setattr("builtins.input", confirm)
    done = run("release", "x")

    assert done.returncode == 1
    assert "x was not released: the holder has changed" in done.stderr
    assert new[0].owned()


def test_release_by_host_process_task_or_stale_renewal(hold, redis_server):
    hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)
    hold("alive")
    host = locks.get("alive").holder.host
    process = f"{host}:{os.getpid()}"

    def matching(*arguments):
        lines = call("release", *arguments, "--dry-run").splitlines()
        return {line.split()[2] for line in lines if line.startswith("Would release")}

    with held_by_task("by:task"):
        assert matching("--stale") == {"stuck"}
        assert matching("--task", "sync") == matching("--task", "id-?") == {"by:task"}
        assert matching("--task", "*") == {"by:task"}
        assert matching("--host", host) == {"stuck", "alive", "by:task"}
        assert matching("--host", host, "--pattern", "a*") == {"alive"}
        assert matching("--host", "elsewhere") == set()
        assert matching("--process", process) == {"stuck", "alive", "by:task"}
        assert matching("--process", f"{host}:1") == set()
        assert matching("--stale", "--task", "sync") == set()
    with held_by_task("sent", metadata={"queued": True}):
        assert matching("--host", host) == {"stuck", "alive"}
        assert matching("--process", process) == {"stuck", "alive"}
    named = run("release", "alive", "--stale", "--noinput")
    assert named.returncode == 1
    assert "alive has no holder" in named.stderr
    assert run("release", "--stale", "--noinput").returncode == 0
    assert [info.name for info in locks.active()] == ["alive"]


def test_confirmation_counts_locks(hold, redis_server, monkeypatch):
    hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)
    prompts = []
    monkeypatch.setattr("sys.stdin", TerminalStream())
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or "n")

    with locks.semaphore("export", 2), locks.semaphore("export", 2):
        done = run("release", "--all")

    assert prompts == ["Release 2 locks? [y/N] "]
    assert (done.returncode, done.stderr) == (1, "Nothing was released.\n")


def test_a_release_records_the_user_of_the_system_and_the_reason(hold):
    hold("x")

    assert run("release", "x", "--yes", "--reason", "It hangs").returncode == 0

    [event] = locks.history("x", limit=1)
    assert (event.outcome, event.by, event.reason) == ("forced", getpass.getuser(), "It hangs")
    shown = call("history", "x")
    assert "FORCED BY" in shown
    assert f"{event.by}: It hangs" in shown


@pytest.mark.parametrize("process", ["web-1", "web-1:", ":7", "web-1:x", "web-1:-3"])
def test_a_process_is_a_host_and_an_id(process):
    done = run("release", "--process", process)
    assert done.returncode == 2
    assert "HOST:PID" in done.stderr


def test_dry_run_releases_nothing(hold):
    hold("x")

    done = run("release", "x", "--dry-run")
    gone = run("release", "gone", "--dry-run")

    assert done.returncode == 0
    assert done.stdout.startswith("Would release x (")
    assert gone.returncode == 1
    assert locks.get("x")


def test_a_server_that_goes_away_ends_the_release(hold, disconnect, settings):
    held = [hold(name, timeout=90 + number) for number, name in enumerate("abc")]
    caches = settings.CACHES

    def disconnect_after_the_first(using, **about):
        disconnect()

    with listening(lock_force_released, disconnect_after_the_first):
        done = run("release", "--all", "--yes")
    settings.CACHES = caches

    assert done.returncode == 1
    assert done.stdout.count("Released ") == 1
    assert re.fullmatch("CommandError: .* whether [abc] was released.*refused.*\n", done.stderr)
    assert sum(lock.owned() for lock in held) == 2
