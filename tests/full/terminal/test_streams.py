"""`manage.py locks` with streams that are terminals, closed, full, or not read."""

import os
import pty
from typing import Any

import pytest

from django_redislock import locks
from tests.commands import MANAGE, Terminal, run_process

ANSI = "\x1b["


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [([], {}), ([], {"DJANGO_COLORS": "nocolor"}), (["--no-color"], {})],
)
def test_a_terminal_gets_djangos_colours_and_a_pipe_only_if_forced(hold, arguments, environment):
    hold("x")
    is_coloured = not (arguments or environment)

    with Terminal("list", *arguments, **environment) as terminal:
        assert terminal.end() == 0

    assert "x" in terminal.text
    assert (ANSI.encode() in terminal.raw) is is_coloured
    forced = ["--force-color"] * is_coloured
    assert (ANSI in run_process("show", "x", *forced).stdout) is is_coloured


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)])
def test_release_asks_on_a_terminal(hold, answer, status):
    hold("x")

    with Terminal("release", "x") as terminal:
        terminal.shows(r"^To be released: x \(.*; not renewed yet\)$")
        terminal.shows("^held: The holder is not stopped")
        terminal.shows(r"^Release 1 lock\? \[y/N\]")
        terminal.press(answer)
        assert terminal.end() == status

    assert ("Nothing was released." in terminal.text) == (status == 1)
    assert (locks.get("x") is None) == (status == 0)


# No terminal


def run_redirected(redirection: str, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the errors, with a redirection by the shell."""
    program = ["sh", "-c", f'exec "$@" {redirection}', "sh", *MANAGE]
    done = run_process(*arguments, program=program)
    return done.returncode, done.stderr


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-"])
def test_release_is_refused_without_a_terminal(hold, redirection):
    lock = hold("x")

    status, error = run_redirected(redirection, "release", "x")

    assert (status, error.count("\n")) == (1, 1)
    assert "--yes" in error
    assert lock.owned()


def run_unread(*arguments: str, **options: Any) -> tuple[int, str]:
    """Return the exit status and the errors if the output is not read."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = run_process(*arguments, stdout=stdout, **options)
    return done.returncode, done.stderr


def test_without_a_reader_a_command_does_its_work_and_keeps_its_status(hold):
    # More text than the buffer of a pipe.
    held = [hold(f"{number:0>500}") for number in range(30)]
    names = [lock.name for lock in held[:2]]

    assert run_unread("list") == (0, "")
    released = run_unread("release", *names, "free", "--yes")
    assert released == (1, "CommandError: free is not held\n")
    assert run_unread("release", "--all", "--yes") == (0, "")
    assert not any(lock.owned() for lock in held)
    failed = (1, "CommandError: Locks on 'default': connection (failed)\n")
    assert run_unread("check", REDIS_URL="redis://127.0.0.1:1/0") == failed


@pytest.mark.parametrize("count", [1, 30])
def test_nothing_is_released_if_the_question_is_not_read(hold, count):
    held = [hold(f"{number:0>500}") for number in range(count)]
    ours, theirs = pty.openpty()

    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs, "rb") as stdin:
        keyboard.write(b"y\n")
        run_unread("release", "--all", stdin=stdin)

    assert all(lock.owned() for lock in held)


def test_a_release_that_cannot_be_reported_is_the_last_one(hold):
    held = [hold(f"{number}") for number in range(3)]

    done = run_redirected(">/dev/full", "release", "--all", "--yes")

    error = "CommandError: [Errno 28] No space left on device\n"
    assert done == (1, error)
    assert sum(lock.owned() for lock in held) == 2
    assert run_redirected(">/dev/full", "list") == (1, error)
