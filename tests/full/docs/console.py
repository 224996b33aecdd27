"""Run the shell commands of a page, and compare their output with the page."""

import contextlib
import importlib.metadata
import io
import os
import pty
import re
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from threading import Timer
from typing import TextIO
from unittest import mock

import redis
from django.core.management import execute_from_command_line
from packaging.requirements import Requirement

from tests.tools import ROOT

from . import project
from .page import Page
from .printed import assert_same, matches

COMMAND_SECONDS = 60
"""Time limit of one command."""

REPEAT_SECONDS = 5
"""Time until the next interrupt. Python ignores an interrupt in a ``__del__``."""

ENDLESS = {
    "worker": "celery@",
    "beat": "celery beat",
    "runserver": "Quit the server",
}
"""Commands that run until they are interrupted, each with the output that shows its begin."""

HERE = re.compile(r"python manage\.py locks (?!run)[^|&;<>]*(#.*)?$")
"""A command that needs neither a shell nor another process."""

COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
"""A command, with continuation lines after a backslash, and the output below it."""


def run(page: Page, text: str) -> None:
    """Run the commands of a sample, and compare what they print."""
    __tracebackhide__ = True
    assert text.startswith("$ "), "a console sample begins with '$ '"
    for command, shown in COMMAND.findall(text):
        page.printed = _perform(page, page.real(command), shown)
        if shown:
            assert_same(page.printed, shown)


def _perform(page: Page, command: str, shown: str) -> str:
    __tracebackhide__ = True
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        return _make(words)
    if words[:2] == ["pip", "install"]:
        return _pip_install(words[2:])
    if words[:2] == ["apt-get", "install"]:
        return ""  # tests install no programs
    if words[0] == "redis-cli":
        return ask(page, words[1:])
    if HERE.match(command):
        return _here(words[1:])
    if words[0] in {"python", "celery", "django-admin"}:
        return in_shell(page, command, shown)
    raise AssertionError(f"nothing runs {command!r}")


def _make(words: list[str]) -> str:
    """Check that make knows the target, without running it, because some targets take hours."""
    subprocess.run(
        ["make", "--dry-run", *words[1:]], cwd=ROOT, stdout=subprocess.DEVNULL, check=True
    )
    return ""


def _pip_install(words: list[str]) -> str:
    """Check that the command installs this package with known extras, and nothing that this
    environment lacks."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in map(Requirement, words):
        if wanted.name != ours["name"]:
            assert importlib.metadata.version(wanted.name)
        else:
            assert wanted.extras <= ours["optional-dependencies"].keys()
    return ""


def ask(page: Page, words: list[str]) -> str:
    """Send a command to the page's own server, whatever address the page shows."""
    if words[0] == "-u":
        words = words[2:]
    with redis.Redis.from_url(page.server.url, decode_responses=True) as client:
        return str(client.execute_command(*words))


def _here(argv: list[str]) -> str:
    """Run a Django command in this process, because a new process takes a second to start."""
    __tracebackhide__ = True
    printed, status = io.StringIO(), 0
    with (
        _typed("yes\n") as stdin,
        mock.patch("sys.stdin", stdin),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            execute_from_command_line(argv)
        except SystemExit as ended:
            status = ended.code
    assert not status, f"ended with {status}:\n{printed.getvalue()}"
    return printed.getvalue()


def in_shell(page: Page, command: str, shown: str = "") -> str:
    """Run a command with bash in the page's project, and return its output. Questions are answered
    with yes."""
    __tracebackhide__ = True
    with _typed("yes\n") as stdin, _started(page, command, stdin) as process:
        for word, begun in ENDLESS.items():
            if word in command:
                return _until(process, begun, shown)
        printed = process.stdout.read()
    assert process.returncode == 0, f"ended with {process.returncode}:\n{printed}"
    return printed


@contextlib.contextmanager
def _typed(text: str) -> Iterator[TextIO]:
    """Yield a terminal on which `text` was typed."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs) as stdin:
        keyboard.write(text.encode())
        yield stdin


@contextlib.contextmanager
def _started(page: Page, command: str, stdin: TextIO) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["bash", "-c", f"set -o pipefail\n{command}"],
        cwd=page.folder,
        env=project.environment(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        kill = Timer(COMMAND_SECONDS, _signal, [process, signal.SIGKILL])
        kill.start()
        try:
            yield process
        finally:
            kill.cancel()
            kill.join()


def _until(process: subprocess.Popen[str], begun: str, shown: str) -> str:
    """Interrupt the command when it has printed `shown`, or `begun`, and return its output."""
    printed = ""
    for line in process.stdout:
        printed += line
        if matches(printed, shown) if shown else begun in printed:
            break
    _interrupt(process)
    assert process.returncode != -signal.SIGKILL, f"did not end in {COMMAND_SECONDS} s:\n{printed}"
    return printed


def _interrupt(process: subprocess.Popen[str]) -> None:
    while True:
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=REPEAT_SECONDS)
            return


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
