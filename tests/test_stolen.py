"""What was stolen is measured, and a test is asked again only where something was."""

import os
import subprocess
import sys

import pytest

from . import stolen
from .again import TIMES
from .stolen import MUCH
from .tools import ROOT


def test_time_that_was_stolen_is_known(steal, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 50}.get)
    found = stolen.Stolen()
    assert (found.share, found.seconds) == (0, 0)
    steal(25)
    assert (found.share, found.seconds) == (0.25, 0.5)


def test_time_in_which_the_disk_kept_somebody_is_known(steal, monkeypatch, tmp_path):
    file = tmp_path / "io"
    monkeypatch.setattr(stolen, "PRESSURE", file)
    told = "some avg10=0.01 avg60=0.07 avg300=0.20 total={}\nfull avg10=0.00 total=9\n"
    file.write_text(told.format(1_000_000))
    found = stolen.Stolen()
    file.write_text(told.format(1_250_000))
    assert (found.share, found.seconds) == (0, 0.25)


def test_a_machine_that_knows_of_no_theft_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(stolen, "STAT", tmp_path / "none")
    monkeypatch.setattr(stolen, "PRESSURE", tmp_path / "none")
    found = stolen.Stolen()
    assert (found.share, found.seconds) == (0, 0)


SUITE = """
import os
from pathlib import Path
from tests import stolen

HZ = os.sysconf("SC_CLK_TCK")
stolen.STAT, stolen.PRESSURE = Path("stat"), Path("none")
tries = []

def test_it():
    tries.append(1)
    stolen.STAT.write_text(f"cpu 0 0 0 0 0 0 0 {{len(tries) * {seconds} * HZ:.0f}}")
    assert len(tries) > {fails}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "fails", "told"),
    [
        (MUCH / 2, 1, "1 failed in"),
        (MUCH, 0, "1 passed in"),
        (MUCH, 1, "1 passed, 1 rerun in"),
        (MUCH, 9, f"1 failed, {TIMES} rerun in"),
    ],
)
def test_a_test_that_fails_is_asked_again_where_its_machine_was_not_there(
    tmp_path, seconds, fails, told
):
    (tmp_path / "test_it.py").write_text(SUITE.format(seconds=seconds, fails=fails))
    options = ["-p", "tests.again", "-p", "no:django", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told in done.stdout, done.stdout + done.stderr
