"""`manage.py locks run` with signals, lost locks, and on a pseudo-terminal."""

import os
import signal
import sys
import time
from contextlib import suppress

import psutil
import pytest

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.commands import Subprocess, Terminal, run_process
from tests.tools import wait_until

RUN = [sys.executable, "-W", "error", "-m", "django", "locks", "run"]

NAMES = ("SIGTERM", "SIGHUP", "SIGINT")

# `locks run` does not forward a signal that it was started to ignore, as by `nohup`.
SIGNALS = [name for name in NAMES if signal.getsignal(getattr(signal, name)) != signal.SIG_IGN]

LISTENER = """
import os, signal, sys, threading
names = "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGINT"
numbers = {getattr(signal, name) for name in names}
# Not with handlers: Python runs one late if the signal comes right before a read() that blocks.
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
def listen():
    while True:
        name = signal.Signals(signal.sigwait(numbers)).name
        os.write(1, f"got {name}\\n".encode())  # in one piece
threading.Thread(target=listen, daemon=True).start()
print("ready", os.getpid(), flush=True)
sys.stdin.readline()
print("ended", flush=True)
sys.exit(7)
"""
"""Prints each signal, and exits with 7 when it receives a line."""

TIDY = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
print("tidy", flush=True)
"""
"""Ends successfully after SIGTERM."""

LEADS = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the parent may ignore it
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts a command at its terminal without a shell, as `ssh -t` and `docker run -t` do."""


class Run(Subprocess):
    """`locks run` without a terminal."""

    def __init__(self, *arguments, **options):
        super().__init__(*RUN, *arguments, **options)


def listener(name, *options, **more):
    return Run(name, *options, "--", sys.executable, "-c", LISTENER, **more)


def at_a_terminal(*command):
    return Terminal(program=[sys.executable, "-c", LEADS, *RUN, "x", "--", *command])


def is_gone(pid):
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_streams_are_passed_through():
    ended = run_process("run", "x", "--", "sh", "-c", "cat; echo oops >&2", written="a\nb\n")

    assert ended == (0, "a\nb\n", "oops\n")


# Signals


def test_signals_are_passed_on():
    with listener("x") as run:
        run.expect("ready")
        for name in SIGNALS:
            run.send(name)
            run.expect(f"got {name}")
        run.tell("end")

        assert run.wait() == 7
    assert run.said[1:] == [*(f"got {name}" for name in SIGNALS), "ended"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_ends_the_wait(hold, name):
    hold("x")
    with Run("x", "--", "echo", "ran") as run:
        run.expect_complaint(r"Waiting for x \(fencing token")
        wait_until(lambda: locks.get("x").waiters == 1)
        run.send(name)

        assert run.wait() == 128 + getattr(signal, name)
        assert locks.get("x").waiters == 0
    assert run.said == []


def test_ctrl_c_arrives_once():
    with at_a_terminal(sys.executable, "-c", LISTENER) as terminal:
        terminal.shows("ready")
        terminal.press("\x03")
        terminal.shows("got SIGINT")
        terminal.press("end\n")

        assert terminal.end() == 7
    assert terminal.text.count("got SIGINT") == 1


def test_a_closed_terminal_ends_the_command():
    with at_a_terminal("sleep", "1000") as terminal:
        process = terminal.process
        wait_until(lambda: [p.name() for p in psutil.Process(process.pid).children()] == ["sleep"])
        os.close(terminal.ours)
        terminal.ours = os.open(os.devnull, os.O_RDONLY)  # which is closed at the end
        assert process.wait(timeout=20) == 128 + signal.SIGHUP


# The lock is lost


@pytest.mark.parametrize(
    "before", [(), ["sh", "-c", 'exec "$@" 2>&-', "sh"]], ids=["", "no stderr"]
)
def test_a_command_that_handles_sigterm_after_a_loss_is_exit_75(before):
    with Run("x", "--timeout", "3", "--", sys.executable, "-c", TIDY, before=before) as run:
        run.expect("ready")
        locks.force_release("x")

        assert run.wait() == 75
        assert "tidy" in run.said


def test_a_command_that_does_not_end_is_killed():
    command = "trap '' TERM; echo pid $$; while :; do sleep 1; done"
    with Run("x", "--timeout", "3", "--grace", "0.5", "--", "sh", "-c", command) as run:
        pid = run.expect("pid")
        locks.force_release("x")
        run.expect_complaint("x was lost")
        terminated = time.monotonic()

        assert run.wait() == 75
        assert 0.3 < time.monotonic() - terminated < 60
        wait_until(lambda: is_gone(pid))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_end_does_not_wait_for_an_unreachable_server(how):
    with EmbeddedServer() as server, listener("x", "--timeout", "60", REDIS_URL=server.url) as run:
        run.expect("ready")
        os.kill(server.pid, how)
        try:
            run.tell("end")
            assert run.wait() == 7
        finally:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGCONT)
    run.expect_complaint("x cannot be released, and is held until its lease expires: ")
