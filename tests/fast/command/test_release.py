"""`manage.py locks release`."""

import getpass
import os
import re

from django_redislock import locks
from django_redislock.lock_state import HELD
from tests.commands import call, run
from tests.lock_tools import start, waiting
from tests.pages import postpone

from .conftest import acquire_and_release, held_by_task


def test_release_of_one_records_the_user_of_the_system_and_the_reason(hold):
    lock = hold("invoice:42")
    fence = lock.fence_token

    done = run("release", "invoice:42", "--yes", "--reason", "It hangs")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Released invoice:42 (fencing token {fence}, held by")
    assert locks.get("invoice:42") is None
    [event] = locks.history("invoice:42", limit=1)
    assert (event.outcome, event.by, event.reason) == ("forced", getpass.getuser(), "It hangs")
    assert f"{event.by}: It hangs" in call("history", "invoice:42")


def test_a_name_that_is_not_held_and_a_wrong_token_are_exit_1(hold):
    lock = hold("a")

    for line in ("a* --yes", "b --dry-run", "a --token other --yes", "--token other --yes"):
        assert run("release", *line.split()).returncode == 1
        assert lock.owned()
    assert "has this token" in run("release", "--token", "other", "--yes").stderr
    done = run("release", "a", "b", "--token", lock.token, "--yes")

    assert done.returncode == 1
    assert "b is not held" in done.stderr
    assert locks.get("a") is None


def test_release_by_pattern_age_host_process_task_or_stale_renewal(hold, redis_server):
    hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)
    hold("alive")
    host = locks.get("alive").holder.host
    process = f"{host}:{os.getpid()}"

    def matching(line):
        lines = call("release", *line.split(), "--dry-run").splitlines()
        return {line.split()[2] for line in lines if line.startswith("Would release")}

    with held_by_task("by:task"), held_by_task("sent", metadata={"queued": True}):
        for line, found in (
            ("--all", {"stuck", "alive", "by:task", "sent"}),
            ("--pattern a* --older-than 5m", set()),
            ("--older-than 50s", {"stuck"}),
            ("--stale", {"stuck"}),
            ("--stale --task sync", set()),
            ("--task id-?", {"by:task", "sent"}),
            (f"--host {host} --pattern a*", {"alive"}),
            ("--host elsewhere", set()),
            (f"--process {process}", {"stuck", "alive", "by:task"}),
            (f"--process {host}:1", set()),
        ):
            assert matching(line) == found, line
    assert run("release", "alive", "--stale", "--noinput").returncode == 1
    assert run("release", "--stale", "--noinput").returncode == 0
    assert [info.name for info in locks.active()] == ["alive"]


# The confirmation


def test_the_confirmation_counts_locks_and_says_what_a_release_does(hold, answer):
    prompts = []
    answer(lambda prompt: prompts.append(prompt) or "n")

    with locks.semaphore("export", 2), locks.semaphore("export", 2), locks.lock("sync:7"):
        next_one = start(acquire_and_release, locks.lock("sync:7"))
        waiting(locks, "sync:7", 1)
        done = run("release", "--all")
    assert next_one.result(60)

    assert prompts == ["Release 2 locks? [y/N] "]
    assert (done.returncode, done.stderr) == (1, "Nothing was released.\n")
    assert f"\nheld: {HELD.release}" in done.stdout
    assert re.search(rf"sync:7\W+ next is \S+:{os.getpid()}\b.*, the only waiter", done.stdout)


def test_new_holder_is_not_released(hold, answer):
    old, new = hold("x"), []

    def confirm(prompt):
        old.release()
        new.append(hold("x"))
        return "y"

    answer(confirm)
    done = run("release", "x")

    assert done.returncode == 1
    assert "x was not released: the holder has changed" in done.stderr
    assert new[0].owned()
