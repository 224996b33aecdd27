"""A run loses no test, or fails, with and without pytest-xdist."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ROOT

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_one(number): ...
"""

SWALLOW = """
def pytest_runtest_protocol(item):
    return True if item.name == "test_one[4]" else None
"""

UNSENDABLE = """
def test_two(): raise AssertionError(chr(0xdf81))
"""


def run_tests(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(tests)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}")
    usual = "-p", "tests.counted", "-p", "xdist", "-p", "no:cacheprovider"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *usual, *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_run_that_loses_tests_fails(tmp_path: Path, processes: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(SWALLOW)
    done = run_tests(tmp_path, TESTS, *processes)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_sample.py::test_one[4]" in done.stdout


def test_a_report_that_has_no_encoding_loses_no_test(tmp_path: Path) -> None:
    done = run_tests(tmp_path, UNSENDABLE + TESTS, "-n", "1")
    assert "1 failed, 6 passed" in done.stdout, done.stdout + done.stderr
