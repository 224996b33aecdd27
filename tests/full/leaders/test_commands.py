"""`migrate` as an isolated command in two pods."""

import sys

import pytest

from django_redislock import locks
from tests.commands import Subprocess
from tests.lock_tools import waiting
from tests.tools import wait_until

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
            first.send("SIGKILL")
            wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
            (tmp_path / "go").touch()
            assert second.wait() == 0
