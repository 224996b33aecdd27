"""`manage.py locks run` in this process. Signals and terminals are in tests/full/terminal."""

import json
import os
import re
import signal
import sys
import threading

import pytest
from django.core.management import call_command

from django_redislock import locks
from django_redislock.signals import lock_acquired
from django_redislock.testing import held_elsewhere
from tests.commands import run
from tests.lock_tools import listening, start
from tests.tools import ROOT, wait_until


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command"], 127),
        ([str(ROOT)], 126),
    ],
)
def test_exit_status_is_the_commands(command, status, capfd):
    ended = run("run", "x", "--", *command)

    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.count("\n") == (status in (126, 127))
    assert capfd.readouterr() == ("", "")
    assert locks.get("x") is None


def test_command_may_have_any_arguments(capfd):
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    given = ["-la", "--using", "x", "--", "--settings", "y", "--skip", "", "ä", "\udcff", "--help"]

    run("run", "x", "--skip", "--timeout", "1m", "--", sys.executable, "-c", code, *given)

    assert json.loads(capfd.readouterr().out) == given


def test_command_gets_the_lock_in_its_environment_and_the_lock_its_name(capfd):
    found = []
    with listening(lock_acquired, lambda **about: found.append(locks.get("x"))):
        assert run("run", "x", "--timeout", "20s", "--", "/usr/bin/env").returncode == 0

    [info] = found
    environment = capfd.readouterr().out.splitlines()
    assert {"REDISLOCK_NAME=x", f"REDISLOCK_FENCE_TOKEN={info.fence_token}"} <= {*environment}
    assert (info.timeout, info.holder.pid) == (20, os.getpid())
    assert info.metadata == {"command": "env"}


def test_a_lost_lock_is_exit_75(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def release():
        with fifo.open("w"):  # the command has opened it
            locks.force_release("x")

    released = start(release)
    ended = run("run", "x", "--timeout", "30", "--", "cat", str(fifo))
    released.result(60)

    assert ended.returncode == 75
    assert ended.stderr.startswith("x was lost when the command ended")


# The lock is held by another process


HOLDER = r"\(fencing token \d+, held by \S+:\d+ for .+\n"


@pytest.mark.parametrize(
    ("options", "status", "printed"),
    [
        ("--skip", 1, rf"Not run: x {HOLDER}"),
        ("--wait 0.05 --conflict-exit-code 99", 99, rf"Waiting for x {HOLDER}Not run: x {HOLDER}"),
        ("--skip --conflict-exit-code 0", 0, ""),
    ],
)
def test_a_conflict_names_the_holder_unless_it_is_a_success(options, status, printed):
    with held_elsewhere("x"):
        ended = run("run", "x", *options.split(), "--", "echo", "ran")
        assert locks.get("x").waiters == 0

    assert (ended.returncode, ended.stdout) == (status, "")
    assert re.fullmatch(printed, ended.stderr)


def test_runs_when_the_lock_is_released(capfd):
    def release_for_the_waiter():
        with held_elsewhere("x"):
            held.set()
            wait_until(lambda: locks.get("x").waiters == 1)

    held = threading.Event()
    released = start(release_for_the_waiter)
    held.wait(60)
    ended = run("run", "x", "--wait", "30s", "--", "echo", "ran")
    released.result(60)

    assert (ended.returncode, capfd.readouterr().out) == (0, "ran\n")
    assert "Waiting for x (" in ended.stderr


# From code


def test_call_command_raises_the_status_and_restores_the_signals():
    def state():
        return [*map(signal.getsignal, signal.valid_signals())], signal.pthread_sigmask(0, ())

    before = state()
    with pytest.raises(SystemExit) as ended:
        call_command("locks", "run", "x", "--", "sh", "-c", "exit 3")

    assert ended.value.code == 3
    assert state() == before
