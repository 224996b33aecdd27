"""A run that loses tests fails, with and without pytest-xdist."""

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


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_run_that_loses_tests_fails(tmp_path: Path, processes: tuple[str, ...]) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(SWALLOW)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}")
    options = "-p", "tests.counted", "-p", "no:django", "-p", "no:cacheprovider", *processes
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_sample.py::test_one[4]" in done.stdout
