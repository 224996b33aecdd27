"""`manage.py locks run` in this process. Signals and terminals are in tests/full/terminal."""

import json
import os
import re
import signal
import sys
import threading

import psutil
import pytest
from django.core.management import call_command

from django_redislock import locks
from django_redislock.signals import lock_acquired
from django_redislock.testing import held_elsewhere
from tests.commands import run
from tests.lock_tools import listening, start
from tests.tools import ROOT, wait_until

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD]
SIGNALS += [signal.SIGQUIT, signal.SIGINT]


@pytest.fixture
def while_it_runs(tmp_path):
    """Run a command, and a function with its lock and its process in another thread."""

    def begin(do, *options):
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)

        def work():
            info = wait_until(lambda: locks.get("x"))
            wait_until(lambda: [each.name() for each in children()] == ["cat"])
            try:
                return do(info, *children())
            finally:
                fifo.write_text("")

        found = start(work)
        ended = run("run", "x", *options, "--", "cat", str(fifo))
        return ended, found.result(60)

    def children():
        return [each for each in psutil.Process().children() if each.name() == "cat"]

    return begin


# The exit status and the command


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -USR1 $$"], 138),
        (["no-such-command"], 127),
        (["/no/such/command"], 127),
        ([str(ROOT / "pyproject.toml")], 126),
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


def test_command_gets_the_lock_in_its_environment(while_it_runs):
    ended, (info, environment) = while_it_runs(
        lambda info, command: (info, command.environ()), "--timeout", "20s"
    )

    assert ended.returncode == 0
    assert environment["REDISLOCK_NAME"] == "x"
    assert environment["REDISLOCK_FENCE_TOKEN"] == str(info.fence_token)
    assert (info.timeout, info.holder.pid) == (20, os.getpid())
    assert info.metadata == {"command": "cat"}


def test_the_metadata_have_the_name_of_the_command(tmp_path):
    program = tmp_path / ("\u202e" * 60)
    program.symlink_to("/bin/true")
    recorded = []

    def record(signal, **arguments):
        recorded.append(locks.get("x").metadata["command"])

    with listening(lock_acquired, record):
        assert run("run", "x", "--", "/./" * 900 + str(program)).returncode == 0

    [command] = recorded
    assert command == r"\u202e" * 60


def test_a_lost_lock_is_exit_75(while_it_runs):
    ended, _ = while_it_runs(lambda info, command: locks.force_release("x"), "--timeout", "30")

    assert ended.returncode == 75
    assert ended.stderr.startswith("x was lost when the command ended")


# The lock is held by another process


def test_skip_names_the_holder():
    with held_elsewhere("x") as held:
        ended = run("run", "x", "--skip", "--", "echo", "ran")
        [found] = locks.get("x").holders
        assert held.owned()

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(
        f"Not run: x (fencing token {found.fence_token}, held by {found.holder.host}:{os.getpid()}"
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "status", "printed"),
    [
        (["--wait", "0.05"], 99, "Waiting for x (.+\nNot run: x (.+\n"),
        (["--wait", "0.05"], 0, ""),
        (["--skip"], 0, ""),
    ],
)
def test_a_conflict_prints_nothing_if_it_is_a_success(options, status, printed):
    with held_elsewhere("x"):
        ended = run("run", "x", *options, "--conflict-exit-code", str(status), "--", "false")
        assert locks.get("x").waiters == 0

    assert (ended.returncode, ended.stdout) == (status, "")
    assert re.fullmatch(printed.replace("(", r"\("), ended.stderr)


@pytest.mark.parametrize(
    ("options", "waits"),
    [([], True), (["--wait", "30s"], True), (["--conflict-exit-code", "0"], False)],
)
def test_runs_when_the_lock_is_released(options, waits, capfd):
    def release_for_the_waiter():
        with held_elsewhere("x"):
            held.set()
            wait_until(lambda: locks.get("x").waiters == 1)

    held = threading.Event()
    released = start(release_for_the_waiter)
    held.wait(60)
    ended = run("run", "x", *options, "--", "echo", "ran")
    released.result(60)

    assert (ended.returncode, capfd.readouterr().out) == (0, "ran\n")
    assert ("Waiting for x (" in ended.stderr) is waits


def test_name_of_another_kind_is_refused():
    with locks.semaphore("x", 2):
        ended = run("run", "x", "--", "echo", "ran")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "is in use as a semaphore" in ended.stderr


# From code


def test_call_command_raises_the_status_and_restores_the_signals():
    def state():
        return [*map(signal.getsignal, SIGNALS)], signal.pthread_sigmask(signal.SIG_BLOCK, ())

    before = state()

    with pytest.raises(SystemExit) as ended:
        call_command("locks", "run", "x", "--", "sh", "-c", "exit 3")

    assert ended.value.code == 3
    assert state() == before


def test_call_command_raises_a_conflict():
    with held_elsewhere("x"), pytest.raises(SystemExit) as conflict:
        call_command("locks", "run", "x", "--", "true", skip=True, conflict_exit_code=9)

    assert conflict.value.code == 9
    with held_elsewhere("x"):  # this conflict is a success
        call_command("locks", "run", "x", "--", "false", skip=True, conflict_exit_code=0)


def test_another_thread_is_refused():
    refused = start(lambda: call_command("locks", "run", "x", "--", "true"))

    with pytest.raises(ValueError, match="main thread"):
        refused.result(60)
