"""What one server carries: that the measure measures it."""

import re
import subprocess
import sys

import pytest

from django_redislock.keys import BUCKETS, Keys
from tests.tools import ROOT

from .scale.__main__ import SPREAD_OVER, Carried, Load, _row, _spread


def test_a_full_core_is_reckoned_from_the_time_of_a_cycle():
    rounds = [
        Carried(4000.0, 0.4, 100.0),
        Carried(5000.0, 0.5, 100.0),
        Carried(6000.0, 0.6, 100.0),
    ]
    assert _row(Load(1, "who", 2), rounds) == (
        *("1", "who", "2", "5,000", "4,500 to 5,500"),
        *("50%", "100 µs", "10,000 a second"),
    )


def test_all_buckets_lie_somewhere_and_the_fullest_primary_is_the_limit():
    rows = re.findall(r"^\| (\d+) \| ([\d, ]+) \| ([\d.]+) servers \|$", _spread(Keys("a")), re.M)
    assert [int(primaries) for primaries, *_ in rows] == list(SPREAD_OVER)
    for primaries, told, most in rows:
        of_each = [int(each) for each in told.split(", ")]
        assert (len(of_each), sum(of_each)) == (int(primaries), BUCKETS)
        assert abs(float(most) - BUCKETS / of_each[0]) < 0.01


@pytest.mark.slow
def test_a_run_measures_one_server_and_three():
    command = ["-m", "tests.benchmarks.scale", "--rounds", "1", "--seconds", "0.2"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| ([13]) \| (.+?) \| (\d) \| ([\d,]+) \|", done.stdout, re.M)
    assert len(rows) == 10
    assert all(int(cycles.replace(",", "")) > 0 for *_, cycles in rows)
