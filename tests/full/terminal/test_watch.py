"""`manage.py locks watch` on a pseudo-terminal."""

import os
import signal
import termios
import time
from pathlib import Path

import psutil
import pytest

from django_redislock.engine.timing import REPLY_TIMEOUT_SECONDS
from django_redislock.lua import NAMES
from django_redislock.testing import EmbeddedServer
from tests.commands import Terminal, run_process
from tests.faults.proxy import Proxy, runs
from tests.pages import postpone
from tests.tools import ROOT, wait_until


def test_only_the_screen_needs_textual(hold, tmp_path: Path):
    missing = "raise ModuleNotFoundError(name='textual')\n"
    tmp_path.joinpath("textual.py").write_text(missing)
    hold("x")

    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    with Terminal("watch", PYTHONPATH=paths) as terminal:
        terminal.shows(r"pip install 'django-redislock\[terminal\]'")
        assert terminal.end() == 1
    done = run_process("list", PYTHONPATH=paths)

    assert b"\x1b[?1049h" not in terminal.raw
    assert (done.returncode, done.stderr) == (0, "")


def test_the_screen_is_redrawn(hold, redis_server):
    hold("alive")
    lock = hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)

    with Terminal("watch", "--interval", "0.2") as terminal:
        terminal.shows(r"FENCE\nstuck +stale ")
        assert terminal.colour_of("stuck") == "ff875f"
        assert terminal.colour_of("alive") != "ff875f"
        lock.release()
        terminal.shows(r"\d\d:\d\d:\d\d +released +stuck ")
        terminal.shows(r"1 of 1 locks, 0 stale, 0 waiting")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("how", ["q", "\x03", signal.SIGTERM, signal.SIGINT])
def test_the_terminal_is_restored_at_the_end(how):
    with Terminal("watch") as terminal:
        terminal.shows("0 of 0 locks, ")
        assert not termios.tcgetattr(terminal.theirs)[3] & termios.ECHO
        if isinstance(how, signal.Signals):
            terminal.process.send_signal(how)
        elif how == "q":
            terminal.press(how)
        else:  # Ctrl-C of a terminal that is not a session leader
            os.killpg(terminal.process.pid, signal.SIGINT)

        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.modes

    assert terminal.raw.count(b"\x1b[?1049h") == terminal.raw.count(b"\x1b[?1049l") == 1
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")
    assert b"Traceback" not in terminal.raw


def is_stopped(terminal: Terminal) -> bool:
    terminal.read(0.1)
    return psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED


def test_the_terminal_is_restored_while_it_is_stopped():
    with Terminal("watch") as terminal:
        terminal.shows("0 of 0 locks, ")
        terminal.press("\x1a")
        wait_until(lambda: is_stopped(terminal))
        assert termios.tcgetattr(terminal.theirs) == terminal.modes
        terminal.process.send_signal(signal.SIGCONT)
        wait_until(lambda: terminal.read(0.1) and terminal.raw.count(b"\x1b[?1049h") == 2)
        terminal.shows("0 of 0 locks, ")
        terminal.press("q")
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.modes


def test_the_screen_ends_while_it_waits_for_redis():
    with (
        EmbeddedServer() as server,
        Proxy("127.0.0.1", server.port) as proxy,
        Terminal("watch", "--interval", "0.1", REDIS_URL=proxy.through(server.url)) as terminal,
    ):
        terminal.shows("0 of 0 locks, ")
        wait_until(proxy.delay_reply(runs(NAMES), 60).has_begun)
        began = time.monotonic()
        terminal.press("q")
        assert terminal.end() == 0
        assert time.monotonic() - began < REPLY_TIMEOUT_SECONDS + 3
