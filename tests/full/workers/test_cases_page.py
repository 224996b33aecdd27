"""The table of cases in the docs has the rows and columns of the tests."""

from inspect import getdoc, getmembers, isfunction

from tests.tools import ROOT

from . import table_of_deliveries, test_cases
from .cases_app import MODES
from .cases_table import read

PAGE = ROOT / "docs" / "evidence" / "results" / "cases.md"


def rows():
    tests = [test for name, test in getmembers(test_cases, isfunction) if name.startswith("test_")]
    return sorted(tests, key=lambda test: test.__code__.co_firstlineno)


def title(test):
    return f"{getdoc(test).splitlines()[0].rstrip('.')}<br>`{test.__name__}`"


def test_the_table_has_a_column_for_each_mode_and_a_row_for_each_test():
    head, *body = read(PAGE)
    assert head == ["Case", *(f"`{mode}`" for mode in MODES)]
    assert [row[0] for row in body] == [title(test) for test in rows()]
    for row in body:
        assert len(row) == len(head)
        assert all(row), row


def test_the_docs_have_the_table_of_deliveries_that_the_code_has():
    page = table_of_deliveries.PAGE.read_text()
    assert f"\n\n{table_of_deliveries.table()}\n\n{table_of_deliveries.END}" in page
