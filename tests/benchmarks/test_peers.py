"""The comparison with the peers: its tables, that the README says the same, and that what is done
to a lock is really done."""

import re
from dataclasses import replace
from importlib import import_module

import pytest

from tests.tools import ROOT

from .peers.__main__ import LOCKS, TASKS
from .peers.locks.cases import CASES
from .peers.locks.makes import MAKES
from .peers.locks.place import Place
from .peers.table import (
    BEGIN,
    END,
    LOCK_ROWS,
    TASK_ROWS,
    cells,
    compact,
    put_on,
    short,
    table,
)

PAGE = ROOT / "docs" / "explanation" / "comparison.md"
README = ROOT / "README.md"
LINK = re.compile(r"\[[^]]+\]\(https://[\w./?=&#%-]+\)")


def between(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def outside(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return before + rest.partition(END)[2]


# The pages


def test_the_readme_says_what_the_page_says():
    assert between(README.read_text()) == compact(PAGE.read_text())


def test_a_cell_that_was_not_run_is_a_link_or_empty():
    cited = cells(outside(PAGE.read_text()))
    assert len(cited) > 30
    assert not [cell for cell in cited.values() if cell != "-" and not LINK.search(cell)]


def test_the_page_has_every_case_of_every_package():
    run = cells(between(PAGE.read_text()))
    locks = {(row, MAKES[name].label) for row in CASES for name in LOCKS}
    tasks = import_module(".peers.cases", __package__).CASES
    assert set(run) == locks | {(row, label) for row in tasks for label in TASKS.values()}
    assert all(run.values())


# The tables


def test_a_table_is_read_as_it_was_written():
    columns = {"one": {"a": "1; more", "b": "2"}, "two": {"a": "x", "b": "[y](https://z)"}}
    text = f"Before.\n\n{table(columns, 'corner')}\n\nAfter."
    assert cells(text) == {
        ("a", "one"): "1; more",
        ("b", "one"): "2",
        ("a", "two"): "x",
        ("b", "two"): "[y](https://z)",
    }


def test_both_pages_are_written_and_nothing_else_of_them(tmp_path):
    page, readme = tmp_path / "page.md", tmp_path / "README.md"
    page.write_text(PAGE.read_text())
    readme.write_text(f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    told = between(page.read_text()).replace("FIFO;", "shuffled;")

    put_on(page, readme, told)

    assert outside(page.read_text()) == outside(PAGE.read_text())
    assert "FIFO" not in between(page.read_text())
    assert outside(readme.read_text()) == "Before.\n\n\n\nAfter.\n"
    assert "| shuffled |" in readme.read_text()
    assert ";" not in readme.read_text()


def test_the_readme_has_rows_of_the_page_alone():
    assert set(LOCK_ROWS.values()) <= set(CASES)
    assert set(TASK_ROWS.values()) <= set(import_module(".peers.cases", __package__).CASES)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("lost after 3.1 s; the release raises", "lost after 3.1 s"),
        ("**no equal one in 15 s**: its lock has 45 s left; task: FAILURE", "not free in 15 s"),
        ("raises ConnectionError, and locked for 3.0 s by nobody", "error, locked for 3.0 s"),
        ("FIFO; the last after 0.4 s", "in order"),
        ("FIFO in 2 of 3 rounds; the last after 0.4 s", "in order in 2 of 3 rounds"),
        ("0 2 1 4 3; the last after 0.8 s", "not in order"),
        ("[as it is; said there](https://z)", "[as it is; said there](https://z)"),
    ],
)
def test_the_readme_has_the_short_of_a_cell(cell, shown):
    assert short(cell) == shown


# What is done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("django_redislock", "raises ConnectionError, and free"),
        ("redis_py", r"(says False|raises ConnectionError), and locked for [\d.]+ s by nobody"),
    ],
)
def test_a_reply_is_really_lost_and_what_stays_behind_is_seen(make, said):
    case = replace(CASES["the reply to acquire is lost (`blocking=False`)"], lease=1)
    with Place(make, case) as place:
        assert re.fullmatch(said, case.run(place))
