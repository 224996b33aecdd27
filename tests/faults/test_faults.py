"""The table of all scenarios in the docs. `make faults` runs them."""

from tests.tools import ROOT

from . import table
from .scenarios import ALL

PAGE = ROOT / "docs" / "evidence" / "results" / "faults.md"


def test_the_docs_table_has_a_row_for_each_scenario():
    assert table.titles(PAGE) == [each.label for each in ALL]
