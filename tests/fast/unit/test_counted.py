"""A run that loses a test fails, with and without pytest-xdist."""

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


@pytest.mark.parametrize("processes", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_a_run_that_loses_tests_fails(tmp_path: Path, processes: tuple[str, ...]) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}")
    (tmp_path / "conftest.py").write_text(SWALLOW)
    usual = "-p", "tests.counted", "-p", "no:cacheprovider"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *usual, *processes],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_sample.py::test_one[4]" in done.stdout
