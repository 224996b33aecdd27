"""Scenarios of failovers find what is planted into the locks that their clients use."""

import math
from contextlib import closing

import pytest

from tests.tools import wait_until

from . import users
from .events import read
from .scenario import EXCLUSION, Run, Scenario, Setting
from .scenarios import cluster, partition, sentinel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("faults"),  # they measure how long things take
]


@pytest.fixture
def happen(monkeypatch):
    """Have one run of a scenario happen, with locks that have that fault; what was found, and
    what went wrong."""
    client_of = Run.client_of
    settings = []

    def happen(body, fault):
        def planted(*args, **options):
            client = client_of(*args, **options)
            assert client.ask("tests.faults.planted:plant", fault=fault)
            return client

        monkeypatch.setattr(Run, "client_of", planted)
        scenario = Scenario(0, fault, body, runs=1, short=1, may_fail=(EXCLUSION,))
        setting = Setting(scenario, seed=1, short=True)
        settings.append(setting)
        return setting.happen(), setting.troubles

    yield happen
    for setting in settings:
        setting.close()


def test_a_lock_that_waits_for_no_replica_is_found_with_sentinels(happen, monkeypatch):
    monkeypatch.setattr(sentinel, "LAGS", (0.2,))
    _, troubles = happen(
        lambda setting: sentinel.failover(setting, 1), "takes any lock for replicated"
    )
    assert "counted, and on no replica" in troubles[0]


def test_a_renewal_that_waits_for_no_replica_is_found_in_a_partition(happen, monkeypatch):
    monkeypatch.setattr(users, "LEASES", (1.5, 1.5))
    _, troubles = happen(
        lambda setting: partition.partition(setting, 1), "takes any renewal for replicated"
    )
    assert "counted, and on no replica" in troubles[0]


def test_a_lock_that_waits_for_no_replica_is_found_in_a_cluster(happen, monkeypatch):
    monkeypatch.setattr(cluster, "FAILOVERS", 2)
    _, troubles = happen(
        lambda setting: cluster.failovers(setting, 1), "takes any lock for replicated"
    )
    assert "counted, and on no replica" in troubles[0]


def test_a_fencing_token_that_goes_back_is_found(happen, monkeypatch):
    monkeypatch.setattr(sentinel, "LAGS", (math.inf,))
    found, _ = happen(
        lambda setting: sentinel.failover(setting, 0),
        "counts its fencing tokens, and asks no clock",
    )
    assert found.fences


def test_a_master_that_nobody_struck_is_replaced_and_that_is_noted():
    def body(setting):
        there = sentinel.Watched(setting)
        there.sentinels.wait_in_sync()
        there.locks = ("a", "b")
        old = there.sentinels.master
        there.ordered(old)
        there.sentinels.wait_for_new_master(old)
        wait_until(lambda: [each["lock"] for each in noted(setting)] == ["a", "b"], timeout=10)

    def noted(setting):
        return [each for each in read(setting.folder) if each["what"] == "taken"]

    setting = Setting(Scenario(0, "a test", body, runs=1, short=1), seed=1, short=True)
    with closing(setting):
        setting.happen()
    assert setting.troubles == {}
