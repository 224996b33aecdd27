"""The scenarios in their short form, and the docs' table of their long one."""

import random

import pytest

from tests.tools import ROOT

from . import table
from .scenario import Setting
from .scenarios import ALL

PAGE = ROOT / "docs" / "explanation" / "faults.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("faults")  # they measure how long things take
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_what_is_promised_holds(scenario, django_db_blocker):
    setting = Setting(scenario, seed=random.randrange(1_000_000), short=True)
    print(f"seed {setting.seed}")
    try:
        with django_db_blocker.unblock():
            row = setting.row()
    finally:
        setting.close()
    if setting.missing:
        raise setting.missing
    print(dict(zip(table.HEAD, row.cells(), strict=True)), *row.notes)
    assert not row.failures, f"with seed {setting.seed}: {row.failures}"


def test_the_docs_table_has_a_row_for_each_scenario():
    assert table.titles(PAGE) == [table.title(each.number, each.title) for each in ALL]


def test_no_two_scenarios_have_the_same_name():
    assert len({scenario.name for scenario in ALL}) == len(ALL)
