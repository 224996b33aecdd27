"""The page of cases in the docs has the tables of the tests and of the code."""

import re
from inspect import getmembers, isfunction

from . import table_of_deliveries, test_cases


def test_each_row_of_the_table_of_cases_is_a_test():
    rows = re.findall(r"<br>`(test_\w+)` \|", test_cases.PAGE.read_text())
    tests = [name for name, _ in getmembers(test_cases, isfunction) if name.startswith("test_")]
    assert sorted(rows) == tests


def test_the_docs_have_the_table_of_deliveries_that_the_code_has():
    assert f"\n\n{table_of_deliveries.table()}\n\n" in test_cases.PAGE.read_text()
