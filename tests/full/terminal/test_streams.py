"""`manage.py locks release` asks on a terminal, and only there."""

import pytest

from django_redislock import locks
from tests.commands import Terminal, run_process


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\x04", 1)])
def test_release_asks_on_a_terminal(hold, answer, status):
    hold("x")

    with Terminal("release", "x") as terminal:
        terminal.shows(r"^To be released: x \(.*; not renewed yet\)$")
        terminal.shows(r"^Release 1 lock\? \[y/N\]")
        terminal.press(answer)
        assert terminal.end() == status

    assert (locks.get("x") is None) == (status == 0)


def test_release_is_refused_without_a_terminal(hold):
    lock = hold("x")

    done = run_process("release", "x")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--yes" in done.stderr
    assert lock.owned()
