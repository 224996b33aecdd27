"""The demo as its reader runs it: a process, its figures, its exit status, and what it leaves."""

import http.cookiejar
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testproject import acts
from tests.tools import ROOT, wait_until

COMMAND = [sys.executable, "-m", "testproject.demo"]
MARK = "DEMO_TEST_MARK"
LONGEST = 110


@pytest.fixture
def mark() -> str:
    """An environment variable's value that each descendant of the demo carries."""
    return uuid.uuid4().hex


@pytest.fixture
def environment(mark: str, tmp_path: Path) -> dict[str, str]:
    return os.environ | {MARK: mark, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def demo(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A demo without a terminal that has just started its workers."""
    with subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Valkey on port")
        yield process
        process.kill()


def alive(mark: str) -> list[str]:
    """The command lines of the processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.Error:
            continue
    return found


def run_once(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        COMMAND,
        cwd=ROOT,
        env=environment | {"DEMO_ONCE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
    )


@pytest.mark.celery
@pytest.mark.timeout(LONGEST + 10)
def test_it_tells_the_whole_story_and_leaves_nothing_behind(
    environment: dict[str, str], mark: str, tmp_path: Path
) -> None:
    done = run_once(environment)
    text = done.stdout

    assert done.returncode == 0, text
    assert sold(text, "without a lock") > 500
    assert sold(text, "with locks.lock(...)") == 500
    assert re.search(r"an ordinary task +20 ran +0 skipped", text)
    ran, skipped = figures(r"with @single_instance +(\d+) ran +(\d+) skipped +1 at once", text)
    assert ran + skipped == 20
    assert 1 <= len(re.findall(r"the lock was held by task [\w-]{36}, \S+:\d+", text)) <= ran
    assert text.count("$ manage.py locks list") == 3
    assert "$ manage.py locks release rebuild:products --yes" in text
    assert alive(mark) == []
    assert list(tmp_path.iterdir()) == []


def sold(text: str, label: str) -> int:
    return figures(re.escape(label) + r" +([\d,]+) sold", text)[0]


def figures(pattern: str, text: str) -> list[int]:
    match = re.search(pattern, text)
    assert match, f"no {pattern!r} in: {text}"
    return [int(each.replace(",", "")) for each in match.groups()]


@pytest.mark.slow
@pytest.mark.celery
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_clears_everything_up(
    demo: "subprocess.Popen[str]", mark: str, tmp_path: Path, number: signal.Signals
) -> None:
    demo.send_signal(number)

    # CPython ends by SIGINT, although it was caught, if it came amid the eval() of a string.
    assert demo.wait(30) in (130, -signal.SIGINT)
    assert alive(mark) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.celery
def test_nothing_outlives_a_killed_demo(demo: "subprocess.Popen[str]", mark: str) -> None:
    demo.kill()
    demo.wait()

    wait_until(lambda: not alive(mark), timeout=30)


@pytest.mark.celery
@pytest.mark.slow
def test_in_a_terminal_it_leaves_the_site_up_until_ctrl_c(
    environment: dict[str, str], mark: str, tmp_path: Path
) -> None:
    environment.pop("DEMO_ONCE", None)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(COMMAND[0], COMMAND, environment)  # noqa: S606

    text = read_until(terminal, "Ctrl-C ends it all.")
    address = re.search(r"http://\S+", text)
    logins = re.findall(r"log in as (\w+) / (\S+) ", text)
    assert address
    assert [name for name, _ in logins] == ["admin", "staff"]
    for login in logins:
        assert "rebuild:" in page_after_login(address[0], *login)

    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert alive(mark) == []
    assert list(tmp_path.iterdir()) == []


def read_until(terminal: int, words: str) -> str:
    text = ""
    while words not in text:
        try:
            text += os.read(terminal, 4096).decode()
        except OSError:
            pytest.fail(f"It ended without {words!r}: {text}")
    return text


def page_after_login(address: str, name: str, password: str) -> str:
    browser = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    )
    with browser.open(address) as page:
        at, form = page.geturl(), page.read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token
    answers = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
    answers["next"] = urllib.parse.urlsplit(address).path
    with browser.open(at, urllib.parse.urlencode(answers).encode()) as page:
        return str(page.read().decode())


RAN = {"started": 1.0, "ended": 2.0, "place": "host:1"}
LATER = {"started": 2.0, "ended": 3.0, "place": "host:2"}
MEANWHILE = {"started": 1.5, "ended": 2.5, "place": "host:3"}


def test_figures_as_they_must_be_are_not_complained_of() -> None:
    assert acts.wrong_runs({"a": RAN, "b": None, "c": LATER}) == []
    assert acts.wrong_holders({"a": RAN, "b": None}, {"a": "host:1"}) == []
    assert acts.wrong_lists("x", ["x", "x", ""]) == []
    assert acts.wrong_endings(["lost", "lost"]) == []


def test_figures_as_they_must_not_be_are_complained_of() -> None:
    assert acts.wrong_runs({"a": None}) != []
    assert acts.wrong_runs({"a": RAN, "b": MEANWHILE, "c": None}) != []
    assert acts.wrong_holders({"a": RAN}, {"b": "host:1"}) != []
    assert acts.wrong_holders({"a": RAN}, {"a": "host:2"}) != []
    assert acts.wrong_holders({"a": RAN}, {}) != []
    assert acts.wrong_lists("x", ["x", "", ""]) != []
    assert acts.wrong_endings(["lost", "done"]) != []
