"""How the gallery is called, how it ends, and the page of the docs that shows it."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.management import CommandError, call_command

from testproject.gallery import telling
from testproject.gallery.exhibit import Found, Side
from testproject.gallery.exhibits import ALL
from tests.tools import ROOT, wait_until

from .running import GALLERY, alive, environment, run

PAGE = ROOT / "docs" / "explanation" / "how-locks-go-wrong.md"


@pytest.fixture
def around() -> Iterator[dict[str, str]]:
    # pytest's own folders have names that are too long for a socket's.
    with tempfile.TemporaryDirectory() as folder:
        yield environment(Path(folder))


@pytest.mark.slow
def test_a_reader_gets_lines_from_any_folder(around: dict[str, str]) -> None:
    done = run([*GALLERY, "getset", "--trials", "3"], around, ROOT / "testproject")
    assert done.returncode == 0, done.stderr
    assert "[getset]" in done.stdout
    assert "as taught 3 of 3, ours 0 of 3" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["getsett"], "'getsett' is none of: setnx-expire, plain-del"),
        (["getset", "\x1b[2J"], r"'\\x1b\[2J' is none of"),
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


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], pytest.param(["getset", "--write", str(PAGE)], marks=pytest.mark.slow)],
)
def test_what_is_refused_ends_with_2(around: dict[str, str], arguments: list[str]) -> None:
    done = run([*GALLERY, *arguments], around)
    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("taught", "ours", "is_as_told"), [(3, 0, True), (2, 0, False), (3, 1, False), (0, 0, False)]
)
def test_as_told_is_that_one_fails_always_and_the_other_never(
    taught: int, ours: int, is_as_told: bool
) -> None:
    assert Found(ALL[0], 1, 3, Side(taught, {}), Side(ours, {}), 1.0).is_as_told is is_as_told


PLANTED = """
import sys
from dataclasses import replace
import django
django.setup()
from django.core.management import ManagementUtility
from testproject.gallery.exhibits import getset
from testproject.gallery.management.commands import gallery
gallery.ALL = [replace(getset.EXHIBIT, ours=getset.EXHIBIT.taught)]
ManagementUtility(["manage.py", "gallery", "--trials", "1", "--write", sys.argv[1]]).execute()
"""


@pytest.mark.slow
def test_what_is_not_as_told_ends_with_1_and_is_not_written(
    tmp_path: Path, around: dict[str, str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{telling.BEGIN}\n{telling.END}\n")
    done = run([sys.executable, "-c", PLANTED, str(page)], around)
    assert done.returncode == 1, done.stderr
    assert "Not as told: getset" in done.stderr
    assert "as taught 1 of 1, ours 1 of 1" in done.stdout
    assert page.read_text() == f"{telling.BEGIN}\n{telling.END}\n"


def stopped(around: Mapping[str, str]) -> list[psutil.Process]:
    return [each for each in alive(around) if each.status() == psutil.STATUS_STOPPED]


@pytest.fixture
def started(around: dict[str, str]) -> Iterator[Any]:
    """A gallery of which some processes have just been stopped."""
    with subprocess.Popen(
        [*GALLERY, "plain-del", "--trials", "1000"],
        env=around,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        wait_until(lambda: stopped(around), timeout=60)
        yield process
        process.kill()


@pytest.mark.slow
def test_nothing_outlives_a_killed_gallery_not_even_who_stands_still(
    started: Any, around: dict[str, str]
) -> None:
    started.kill()
    started.wait()
    wait_until(lambda: not alive(around), timeout=30)


@pytest.mark.slow
def test_an_interrupt_clears_everything_up(started: Any, around: dict[str, str]) -> None:
    started.send_signal(signal.SIGINT)
    assert started.wait(60) in (130, -signal.SIGINT)
    wait_until(lambda: not alive(around))
    assert list(Path(around["TMPDIR"]).iterdir()) == []


def test_the_docs_show_each_exhibit_with_its_code_and_a_run_as_told() -> None:
    text = PAGE.read_text()
    for number, exhibit in enumerate(ALL, 1):
        assert f"\n## {exhibit.title}\n" in text
        assert f"\n| ({number}) {exhibit.title}: {exhibit.failure} | 20 of 20 | 0 of 20 |" in text
    assert text.count("```{literalinclude} ") >= len(ALL)
