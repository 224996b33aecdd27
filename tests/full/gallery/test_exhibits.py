"""What is taught fails and ours holds, in one run of all exhibits, and nothing is left of it."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testproject.gallery import telling
from testproject.gallery.exhibits import ALL, dead_waiters, polling, redlock
from tests.tools import wait_until

from .running import GALLERY, LONGEST, alive, environment, run

TRIALS = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("gallery"),  # one run serves them all
    pytest.mark.timeout(LONGEST + 10),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("docs") / "page.md"
    page.write_text(f"before\n\n{telling.BEGIN}\n\nwhat was here\n\n{telling.END}\n\nafter\n")
    return page


@pytest.fixture(scope="module")
def whole(page: Path) -> Iterator[Any]:
    """A run of all exhibits, and what it was run in."""
    options = ["--trials", str(TRIALS), "--json", "--write", str(page)]
    with tempfile.TemporaryDirectory() as folder:
        around = environment(Path(folder))
        yield run([*GALLERY, *options], around), around, Path(folder)


def told_of(whole: Any, name: str) -> dict[str, Any]:
    done, *_ = whole
    [told] = [each for each in json.loads(done.stdout)["exhibits"] if each["name"] == name]
    return told


@pytest.mark.parametrize("name", [exhibit.name for exhibit in ALL])
def test_what_is_taught_fails_each_time_and_ours_never(whole: Any, name: str) -> None:
    told = told_of(whole, name)
    assert told["trials"] == TRIALS
    assert (told["taught"]["failed"], told["ours"]["failed"]) == (TRIALS, 0)
    assert told["as_told"]
    assert told["seconds"] > 0


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("polling", polling.PER_TURN),
        ("polling", polling.LONGEST),
        ("dead-waiters", dead_waiters.STOOD),
    ],
)
def test_what_is_taught_costs_more(whole: Any, name: str, label: str) -> None:
    told = told_of(whole, name)
    assert told["taught"]["figures"][label] > told["ours"]["figures"][label] > 0


def test_it_is_told_that_two_hold_ours_too_where_a_server_forgot(whole: Any) -> None:
    both = {redlock.BOTH: TRIALS}
    assert told_of(whole, "redlock")["ours"]["figures"] == both


def test_it_says_nothing_else_and_leaves_nothing_behind(whole: Any) -> None:
    done, around, folder = whole
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not alive(around))
    assert list(folder.iterdir()) == []


def test_the_table_is_put_between_the_markers(whole: Any, page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"before\n\n{telling.BEGIN}\n\n| ")
    assert text.endswith(f"\n\n{telling.END}\n\nafter\n")
    assert "what was here" not in text
    assert text.count(f" | {TRIALS} of {TRIALS} | 0 of {TRIALS} | ") == len(ALL)
