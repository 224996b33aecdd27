"""`migrate` as an isolated command in two pods."""

import os
import sys
import time

import pytest

from django_redislock import locks
from tests.commands import Subprocess
from tests.lock_tools import waiting
from tests.tools import wait_until

LEASE = 2.0

SLACK = 30
"""Seconds more for a machine that others use too. Alone, it is less than one."""

MANAGE = [sys.executable, "-m", "django"]
POD = {"DJANGO_SETTINGS_MODULE": "tests.full.leaders.pods.settings"}


@pytest.fixture
def pod(tmp_path):
    """Return a function that runs a command in a pod with a new database for all pods."""
    environment = POD | {
        "TESTPROJECT_DB": str(tmp_path / "pods.sqlite3"),
        "PODS_FOLDER": str(tmp_path),
    }
    return lambda *arguments: Subprocess(*MANAGE, *arguments, **environment)


def test_one_of_two_migrations_runs_and_the_other_finds_nothing_to_do(pod, tmp_path):
    def begun():
        return [each.name for each in tmp_path.glob("begun-*")]

    with pod("migrate") as first, pod("migrate") as second:
        wait_until(begun)
        waiting(locks, "migrate:default", 1)
        assert len(begun()) == 1
        (tmp_path / "go").touch()
        assert (first.wait(), second.wait()) == (0, 0)
    assert len(begun()) == 1
    said = ["\n".join(each.said) for each in (first, second)]
    assert sum("Applying pods.0001_initial... OK" in text for text in said) == 1
    assert sum("No migrations to apply." in text for text in said) == 1


def test_a_pod_whose_migration_was_killed_does_not_block_the_others(pod, tmp_path):
    with pod("migrate") as first:
        wait_until(lambda: list(tmp_path.glob("begun-*")))
        with pod("migrate") as second:
            waiting(locks, "migrate:default", 1)
            began = time.monotonic()
            first.send("SIGKILL")
            wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
            print(f"\nthe next migration began {time.monotonic() - began:.2f} s after SIGKILL")
            assert time.monotonic() - began < LEASE + SLACK
            (tmp_path / "go").touch()
            assert second.wait() == 0


def test_a_migration_that_has_to_wait_too_long_is_an_error(pod, tmp_path):
    with pod("migrate") as first:
        wait_until(lambda: list(tmp_path.glob("begun-*")))
        with pod("migrate", "--wait", "0.1") as second:
            assert second.wait() == 1
        assert f"held by {os.uname().nodename}:{first.pid}" in "\n".join(second.complained)
        (tmp_path / "go").touch()
        assert first.wait() == 0
