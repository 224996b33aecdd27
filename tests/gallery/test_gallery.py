"""The gallery as its reader runs it: what fails, what holds, and what it leaves."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.management import CommandError, call_command

from testproject.gallery import telling
from testproject.gallery.exhibits import ALL
from tests.tools import ROOT, wait_until

PAGE = ROOT / "docs" / "explanation" / "how-locks-go-wrong.md"

MARK = "GALLERY_TEST_MARK"
LONGEST = 200
TRIALS = 2

GALLERY = [sys.executable, "testproject/manage.py", "gallery"]

pytestmark = pytest.mark.xdist_group("gallery")  # one run of it all serves many tests


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for what is temporary: the name of a socket in it may not be long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "TMPDIR": str(folder),
        MARK: uuid.uuid4().hex,
    }


def alive(environment: Mapping[str, str]) -> list[psutil.Process]:
    """The processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == environment[MARK]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def run(
    command: list[str], environment: Mapping[str, str], **options: Any
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=options.pop("cwd", ROOT),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("docs") / PAGE.name
    page.write_text(
        f"before\n\n{telling.BEGIN}\n\nwhat was here before\n\n{telling.END}\n\nafter\n"
    )
    return page


@pytest.fixture(scope="module")
def whole(page: Path) -> Iterator[Any]:
    """A run of all exhibits, and what it was run in."""
    with tempfile.TemporaryDirectory() as folder:
        around = environment(Path(folder))
        options = ["--trials", str(TRIALS), "--json", "--write", str(page)]
        done = run([*GALLERY, *options], around)
        yield done, around, Path(folder)


@pytest.mark.timeout(LONGEST + 10)
@pytest.mark.parametrize("name", [exhibit.name for exhibit in ALL])
def test_what_is_taught_fails_each_time_and_ours_never(whole: Any, name: str) -> None:
    done, *_ = whole
    assert done.returncode == 0, done.stderr
    [told] = [each for each in json.loads(done.stdout)["exhibits"] if each["name"] == name]
    assert (told["trials"], told["taught"]["failed"], told["ours"]["failed"]) == (
        TRIALS,
        TRIALS,
        0,
    )
    assert told["as_told"]
    assert told["seconds"] > 0


@pytest.mark.timeout(LONGEST + 10)
@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("polling", "requests for an acquisition"),
        ("polling", "longest wait, in mean waits"),
        ("dead-waiters", "seconds until the next living one was in, at worst"),
    ],
)
def test_what_is_taught_costs_more(whole: Any, name: str, label: str) -> None:
    done, *_ = whole
    [told] = [each for each in json.loads(done.stdout)["exhibits"] if each["name"] == name]
    assert told["taught"]["figures"][label] > told["ours"]["figures"][label] > 0


@pytest.mark.timeout(LONGEST + 10)
def test_it_is_told_that_ours_too_is_held_twice_where_a_server_forgot(whole: Any) -> None:
    done, *_ = whole
    [told] = [each for each in json.loads(done.stdout)["exhibits"] if each["name"] == "redlock"]
    assert told["ours"]["figures"] == {"trials in which both held a majority": TRIALS}


@pytest.mark.timeout(LONGEST + 10)
def test_it_says_nothing_else_and_leaves_nothing_behind(whole: Any) -> None:
    done, around, folder = whole
    assert done.stderr == ""
    wait_until(lambda: not alive(around))
    assert list(folder.iterdir()) == []


@pytest.mark.timeout(LONGEST + 10)
def test_the_table_is_put_between_the_markers(whole: Any, page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"before\n\n{telling.BEGIN}\n\n| ")
    assert text.endswith(f"\n\n{telling.END}\n\nafter\n")
    assert "what was here before" not in text
    assert text.count(f" | {TRIALS} of {TRIALS} | 0 of {TRIALS} | ") == len(ALL)


def test_the_docs_show_each_exhibit_with_its_code_and_a_run_as_told() -> None:
    text = PAGE.read_text()
    for number, exhibit in enumerate(ALL, 1):
        assert f"\n## {exhibit.title}\n" in text
        assert f"\n| ({number}) {exhibit.title}: {exhibit.failure} | " in text
    assert text.count("```{literalinclude} ") >= len(ALL)


def test_a_reader_gets_lines_from_any_folder(short: Path) -> None:
    command = [sys.executable, str(ROOT / "testproject" / "manage.py"), "gallery", "getset"]
    around = environment(short)
    done = run([*command, "--trials", "3"], around, cwd=ROOT / "testproject")
    assert done.returncode == 0, done.stderr
    assert "[getset]" in done.stdout
    assert "as taught 3 of 3, ours 0 of 3" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["getsett"], "'getsett' is none of: setnx-expire, plain-del"),
        (["--trials", "0"], "'0' is no number above 0"),
        (["--trials", "-1"], "'-1' is no number above 0"),
        (["--trials", "many"], "'many' is no number above 0"),
        (["--write", "nowhere.md"], "'nowhere.md' is no page"),
        (["--write", "README.md"], "'README.md' is no page"),
        (["getset", "--write", str(PAGE)], "--write is for all exhibits"),
    ],
)
def test_what_can_not_be_is_refused(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(CommandError, match=says):
        call_command("gallery", *arguments)


@pytest.mark.parametrize("arguments", [["nothing"], ["getset", "--write", str(PAGE)]])
def test_what_is_refused_ends_with_2(short: Path, arguments: list[str]) -> None:
    done = run([*GALLERY, *arguments], environment(short))
    assert done.returncode == 2
    assert done.stdout == ""


CHANGED = """
import sys
from dataclasses import replace
import django
django.setup()
from django.core.management import ManagementUtility
from testproject.gallery.exhibits import getset
from testproject.gallery.management.commands import gallery
exhibit = getset.EXHIBIT
changed = {"taught": exhibit.ours} if sys.argv[1] == "holds" else {"ours": exhibit.taught}
gallery.ALL = [replace(exhibit, **changed)]
ManagementUtility(["manage.py", "gallery", "--trials", "1", "--write", sys.argv[2]]).execute()
"""


@pytest.mark.parametrize(
    ("changed", "says"), [("holds", "0 of 1, ours 0"), ("fails", "1 of 1, ours 1")]
)
def test_what_is_not_as_told_ends_with_1_and_is_not_written(
    tmp_path: Path, short: Path, changed: str, says: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{telling.BEGIN}\n{telling.END}\n")
    before = page.read_text()
    done = run([sys.executable, "-c", CHANGED, changed, str(page)], environment(short))
    assert done.returncode == 1, done.stderr
    assert "Not as told: getset" in done.stderr
    assert f"as taught {says}" in done.stdout
    assert page.read_text() == before


def stopped(around: Mapping[str, str]) -> list[psutil.Process]:
    return [each for each in alive(around) if each.status() == psutil.STATUS_STOPPED]


@pytest.fixture
def started(short: Path) -> Iterator[Any]:
    """A gallery of which some processes have just been stopped."""
    around = environment(short)
    with subprocess.Popen(
        [*GALLERY, "plain-del", "--trials", "100"],
        cwd=ROOT,
        env=around,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        wait_until(lambda: stopped(around), timeout=40)
        yield process, around
        process.kill()


def test_nothing_outlives_a_killed_gallery_not_even_who_stands_still(started: Any) -> None:
    process, around = started
    process.kill()
    process.wait()
    wait_until(lambda: not alive(around), timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_clears_everything_up(
    started: Any, number: signal.Signals, short: Path
) -> None:
    process, around = started
    process.send_signal(number)
    assert process.wait(60) in (130, -signal.SIGINT)
    wait_until(lambda: not alive(around), timeout=10)
    assert list(short.iterdir()) == []
