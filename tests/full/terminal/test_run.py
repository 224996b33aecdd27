"""`manage.py locks run` with signals, lost locks, and on a pseudo-terminal."""

import os
import signal
import sys
import time

import psutil

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.commands import Subprocess, run_process
from tests.tools import wait_until

RUN = [sys.executable, "-W", "error", "-m", "django", "locks", "run"]

ENDS = "trap 'echo got TERM; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
"""A command of the shell that ends when it gets SIGTERM."""


class Run(Subprocess):
    """`locks run` without a terminal."""

    def __init__(self, *arguments, **environment):
        super().__init__(*RUN, *arguments, **environment)


def is_gone(pid):
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_streams_are_passed_through():
    ended = run_process("run", "x", "--", "sh", "-c", "cat; echo oops >&2", written="a\nb\n")

    assert ended == (0, "a\nb\n", "oops\n")


# Signals


def test_a_signal_is_passed_on():
    with Run("x", "--", "sh", "-c", ENDS) as run:
        run.expect("ready")
        run.send("SIGTERM")
        run.expect("got TERM")
        assert run.wait() == 7


def test_a_signal_ends_the_wait(hold):
    hold("x")
    with Run("x", "--", "echo", "ran") as run:
        run.expect_complaint(r"Waiting for x \(fencing token")
        wait_until(lambda: locks.get("x").waiters == 1)
        run.send("SIGTERM")

        assert run.wait() == 128 + signal.SIGTERM
        assert locks.get("x").waiters == 0
    assert run.said == []


# The lock is lost


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


def test_the_end_does_not_wait_for_an_unreachable_server():
    command = ["x", "--timeout", "60", "--", "sh", "-c", "echo ready; read line; exit 7"]
    with EmbeddedServer() as server, Run(*command, REDIS_URL=server.url) as run:
        run.expect("ready")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            run.tell("end")
            assert run.wait() == 7
        finally:
            os.kill(server.pid, signal.SIGCONT)
    run.expect_complaint("x cannot be released, and is held until its lease expires: ")
