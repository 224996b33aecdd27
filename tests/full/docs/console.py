"""Run the shell commands of a page, and compare their output with the page."""

import contextlib
import io
import os
import pty
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from unittest import mock

import redis
from django.core.management import execute_from_command_line

from tests.tools import ROOT

from . import project
from .page import Page
from .printed import assert_same

ENDLESS = {"worker": "celery@", "beat": "celery beat"}
"""Commands that are killed when they have printed this."""

COMMAND_SECONDS = 100

HERE = re.compile(r"python manage\.py locks (?!run)[^|&;<>]*(#.*)?$")
"""A command that needs no other process, and sees the locks and the clock of this one."""

COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
"""A command, with continuation lines after a backslash, and the output below it."""


def run(page: Page, text: str) -> None:
    """Run the commands of a sample, and compare what they print."""
    __tracebackhide__ = True
    assert text.startswith("$ "), "a console sample begins with '$ '"
    for command, shown in COMMAND.findall(text):
        printed = _perform(page, page.real(command))
        if shown:
            assert_same(printed, shown)
        page.printed = "" if shown else printed


def _perform(page: Page, command: str) -> str:
    __tracebackhide__ = True
    words = shlex.split(command, comments=True)
    match words[0]:
        case "make":  # it knows the target; some take hours
            subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True)
            return ""
        case "pip" | "apt-get":
            return ""  # tests install no programs
        case "redis-cli":
            return ask(page, words[3:])
        case "python" if HERE.match(command):
            return _here(words[1:])
        case "python" | "celery" | "django-admin":
            return in_shell(page, command)
    raise AssertionError(f"nothing runs {command!r}")


def ask(page: Page, words: list[str]) -> str:
    """Send a command to the page's own server, whatever address the page shows."""
    with redis.Redis.from_url(page.server.url, decode_responses=True) as client:
        return str(client.execute_command(*words))


def _here(argv: list[str]) -> str:
    __tracebackhide__ = True
    printed, status = io.StringIO(), 0
    with (
        _terminal() as stdin,
        os.fdopen(os.dup(stdin)) as typed,
        mock.patch("sys.stdin", typed),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            execute_from_command_line(argv)
        except SystemExit as ended:
            status = ended.code
    assert not status, f"ended with {status}:\n{printed.getvalue()}"
    return printed.getvalue()


def in_shell(page: Page, command: str) -> str:
    """Run a command with bash in the page's project, and return its output."""
    __tracebackhide__ = True
    begun = [word for name, word in ENDLESS.items() if name in command]
    printed = ""
    with (
        _terminal() as stdin,
        subprocess.Popen(
            ["timeout", "-k", "10", str(COMMAND_SECONDS), "bash", "-c", command],
            cwd=page.folder,
            env=project.environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        for line in process.stdout:
            printed += line
            if begun and begun[0] in line:
                os.killpg(process.pid, signal.SIGKILL)
                return printed
    assert process.returncode == 0, f"ended with {process.returncode}:\n{printed}"
    return printed


@contextlib.contextmanager
def _terminal() -> Iterator[int]:
    """Yield a terminal on which questions are answered with yes."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"yes\n")
    try:
        yield terminal
    finally:
        os.close(keyboard)
        os.close(terminal)
