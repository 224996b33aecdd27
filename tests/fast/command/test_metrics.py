"""The metrics for Prometheus. Those of several processes are in tests/full/metrics."""

import time
from weakref import ref

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_redislock import LockError, locks, metrics, single_instance
from django_redislock.lock_state import STATES
from django_redislock.testing import held_elsewhere
from tests.lock_tools import hanging, start, waiting
from tests.pages import postpone
from tests.tools import wait_until

MUTEX = {"using": "default", "kind": "mutex"}


def text(registry):
    return generate_latest(registry).decode()


def samples(exposed):
    """The values by the name of the sample and its labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
    }


def value(registry, name, **labels):
    found = samples(text(registry))
    return found.get((f"redislock_{name}", frozenset((labels or MUTEX).items())))


def installed(**options):
    registry = CollectorRegistry()
    metrics.install(registry=registry, **options)
    return registry


@pytest.fixture
def registry():
    return installed()


def use_once(name, **options):
    with locks.lock(name, **options):
        pass


def test_holds_and_waits_are_counted_and_timed(registry):
    lock = locks.lock("a")
    assert lock.acquire()
    waits = start(use_once, "a")
    waiting(locks, "a", 1)
    assert value(registry, "held_locks") == 1
    assert value(registry, "waiters") == 1
    wait_until(lambda: locks.queue("a")[0].waited > 0.1)
    lock.release()
    waits.result(60)
    assert value(registry, "held_locks") == 0
    assert value(registry, "waiters") == 0
    assert value(registry, "acquired_total") == 2
    assert value(registry, "wait_seconds_count") == 2
    assert value(registry, "hold_seconds_count") == 2
    assert 0.1 <= value(registry, "wait_seconds_sum") < 5
    assert 0.1 <= value(registry, "hold_seconds_sum") < 5


def test_failures_are_counted_from_0(registry):
    with locks.lock("a"):
        for name in ("refused", "failed", "lost"):
            assert value(registry, f"{name}_total") == 0
        assert start(locks.lock("a", blocking=False).acquire).result(60) is False
        with pytest.raises(LockError):
            locks.lock("a").acquire()
    assert value(registry, "refused_total") == 1
    assert value(registry, "failed_total") == 1


def test_a_lost_or_deleted_lock_is_not_held_and_counted_once(registry):
    lock, deleted = locks.lock("a", timeout=1), locks.lock("b", timeout=1)
    assert lock.acquire()
    assert locks.force_release("a") == 1
    wait_until(lambda: value(registry, "lost_total"))
    with pytest.raises(LockError):
        lock.release()
    assert value(registry, "lost_total") == 1
    assert value(registry, "held_locks") == 0
    assert value(registry, "force_released_total", using="default") == 1

    assert deleted.acquire()
    assert value(registry, "held_locks") == 1
    del deleted
    assert value(registry, "held_locks") == 0
    wait_until(lambda: locks.get("b") is None)


def test_a_skipped_task_is_counted_by_its_name(registry):
    @single_instance(key="a")
    def work():
        return work()

    assert work() is None
    task = f"{__name__}.{work.__qualname__}"
    assert value(registry, "tasks_skipped_total", task=task) == 1


def test_a_label_is_made_from_the_name_or_empty(caplog):
    registry = installed(labels={"area": lambda name: name.split(":")[1]})
    with locks.lock("1:invoice"), locks.lock("2:invoice"), locks.lock("a"):
        assert value(registry, "held_locks", **MUTEX, area="invoice") == 2
        assert value(registry, "held_locks", **MUTEX, area="") == 1
    assert "Metric label function failed: label=area name='a'" in caplog.text


# The server


def test_the_server_is_asked_for_the_states_of_locks(registry, redis_server, monkeypatch):
    def count(state: str) -> float:
        return value(registry, "server_locks", using="default", state=state)

    with locks.lock("cooling", at_least_for=60):
        pass
    with locks.lock("a"), locks.lock("b", timeout=90), held_elsewhere("c"):
        assert (count("held"), count("stale"), count("cooldown"), count("unread")) == (3, 0, 1, 0)
        postpone(redis_server, "b", seconds=60)
        assert (count("held"), count("stale")) == (2, 1)
        monkeypatch.setattr(metrics, "MAX_LOCKS_READ", 3)
        assert (count("unread"), sum(map(count, [*STATES, "unread"]))) == (1, 4)
        assert value(registry, "server_up", using="default") == 1
        acquired = {"using": "default", "event": "acquired"}
        assert value(registry, "server_recent_events", **acquired) >= 3
    locks.force_release("cooling")
    assert "redislock_server_up{" not in text(installed(using=[]))


def test_the_scrape_works_while_the_server_hangs_or_is_away(own_locks, own_server, caplog):
    registry = installed(using=["own", "default", "own"])
    with hanging(own_server):
        began = time.monotonic()
        assert value(registry, "server_up", using="own") == 0
        assert time.monotonic() - began < 2 * metrics.SCRAPE_TIMEOUT_SECONDS
    assert text(registry).count('redislock_server_up{using="own"}') == 1
    assert value(registry, "server_locks", using="own", state="held") == 0
    own_server.stop()
    assert value(registry, "server_up", using="own") == 0
    assert value(registry, "server_locks", using="own", state="held") is None
    assert value(registry, "server_up", using="default") == 1
    assert "Locks not counted: using='own'" in caplog.text


# How it is switched on


def test_installed_twice_it_counts_once_and_only_while_its_registry_exists():
    labels = {"area": len}
    registry = installed(labels=labels, using=["default"])
    metrics.install(registry=registry, labels=labels, using=["default"])
    with locks.lock("a"):
        pass
    assert value(registry, "acquired_total", **MUTEX, area="1") == 1
    deleted = ref(registry)
    del registry
    assert deleted() is None
    with locks.lock("a"):
        pass


def test_a_bad_argument_is_named():
    with pytest.raises(ValueError, match=r"using must be a list of .* got 'nowhere'"):
        metrics.install(registry=CollectorRegistry(), using=["nowhere"])
    with pytest.raises(ValueError, match="labels must not contain 'task'"):
        metrics.install(registry=CollectorRegistry(), labels={"task": str})
