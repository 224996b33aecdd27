"""The demo on a terminal: its figures, its site, its exit status and its processes."""

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from tests.full.gallery.running import alive, environment
from tests.tools import ROOT

from .browser import Browser

COMMAND = [sys.executable, "-m", "testproject.demo"]


@pytest.mark.celery
@pytest.mark.timeout(120)
def test_the_demo_shows_its_figures_and_a_site_until_ctrl_c(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    variables.pop("DEMO_ONCE", None)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(COMMAND[0], COMMAND, variables)  # noqa: S606

    text = read_until(terminal, "Press Ctrl-C to exit.")
    assert sold(text, "without a lock") > 500
    assert sold(text, "with locks.lock(...)") == 500
    assert re.search(r"an ordinary task +20 ran +0 skipped", text)
    ran, skipped = figures(r"with @single_instance +(\d+) ran +(\d+) skipped +1 at once", text)
    assert ran + skipped == 20
    assert 1 <= len(re.findall(r"the lock was held by task [\w-]{36}, \S+:\d+", text)) <= ran
    assert text.count("$ manage.py locks list") == 3
    assert "$ manage.py locks release rebuild:products --yes" in text

    [address] = re.findall(r"http://\S+", text)
    logins = re.findall(r"log in as (\w+) / (\S+) ", text)
    assert [name for name, _ in logins] == ["admin", "staff"]
    for login in logins:
        browser = Browser()
        browser.open(address)
        browser.fill_in(*login)
        assert "rebuild:" in browser.words

    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert alive(variables) == []
    assert list(tmp_path.iterdir()) == []


def read_until(terminal: int, words: str) -> str:
    text = ""
    while words not in text:
        try:
            text += os.read(terminal, 4096).decode()
        except OSError:
            pytest.fail(f"The demo ended without {words!r}: {text}")
    return text.replace("\r", "")


def sold(text: str, label: str) -> int:
    return figures(re.escape(label) + r" +([\d,]+) sold", text)[0]


def figures(pattern: str, text: str) -> list[int]:
    match = re.search(pattern, text)
    assert match, f"no {pattern!r} in: {text}"
    return [int(each.replace(",", "")) for each in match.groups()]
