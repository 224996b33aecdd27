"""One short scenario, and the table of all scenarios in the docs. `make faults` runs them all."""

import random
from contextlib import closing

import pytest

from tests.tools import ROOT

from . import table
from .scenario import Setting
from .scenarios import ALL

PAGE = ROOT / "docs" / "evidence" / "results" / "faults.md"


@pytest.mark.xdist_group("faults")  # it measures how long things take
def test_holders_are_killed():
    [scenario] = [each for each in ALL if each.name == "1. SIGKILL of the holder"]
    with closing(Setting(scenario, seed=random.randrange(1_000_000), short=True)) as setting:
        row = setting.row()
    if setting.missing:
        raise setting.missing
    assert not row.failures, f"with seed {setting.seed}: {row.failures}"
    assert len(row.found.faults) >= scenario.short


def test_the_docs_table_has_a_row_for_each_scenario():
    assert table.titles(PAGE) == [each.label for each in ALL]
