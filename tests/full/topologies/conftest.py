import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from django.test import override_settings

from tests.tools import Child, wait_for_none_left

from . import topologies
from .topologies import Running, Topology

TOPOLOGIES: dict[str, Callable[[], Running]] = {
    "tcp-valkey-9.1": partial(topologies.single, "core"),
    "tls-redis-7.0": partial(topologies.tls, "core", protocol=3),
    "acl-redis-6.2": partial(topologies.acl, "core", "redis-6.2", protocol=2),
    "sentinels": partial(topologies.sentinels, "core_sentinels", "core"),
    "django-redis-unix": partial(topologies.unix, "django_redis"),
    "django-redis-sentinels": partial(topologies.sentinels, "django_redis_sentinels", "django"),
    "django-redis-shards": topologies.shards,
    "django-valkey": partial(topologies.single, "django_valkey"),
    "cluster-acl": partial(topologies.cluster_acl, "valkey-9.1"),
    "cluster-redis-6.2": partial(topologies.cluster, "redis-6.2"),
}
"""One of each kind: backends, servers, transports, Sentinels, Clusters, and users."""

STARTS_WITHIN = 60
"""Seconds in which a process starts on a busy machine."""

OTHER = """
import json
from django_redislock import LockNotOwnedError, locks

held = {}
locks.ping()  # connects before a time limit counts
say("ready")
while order := hear():
    what, name, options = json.loads(order)
    if what == "acquire":
        lock = locks.lock(name, **options)
        if got := lock.acquire():
            held[name] = lock
        say(f"acquired {got} {lock.fence_token}")
    else:
        try:
            held.pop(name).release()
            say("released True")
        except LockNotOwnedError:
            say("released False")
"""


class Other:
    """Another process that acquires and releases locks on request."""

    def __init__(self, child: Child) -> None:
        child.expect("ready", timeout=STARTS_WITHIN)
        self._child = child
        self._held: set[str] = set()

    def acquire(self, name: str, **options: Any) -> int | None:
        """Return the fencing token, or None if the lock was not acquired."""
        self.begin_to_acquire(name, **options)
        return self.acquired(name)

    def begin_to_acquire(self, name: str, **options: Any) -> None:
        self._child.tell(json.dumps(["acquire", name, options]))

    def acquired(self, name: str) -> int | None:
        """Wait for the result of `begin_to_acquire`."""
        got, fence = self._child.expect("acquired").split()
        if got == "False":
            return None
        self._held.add(name)
        return int(fence)

    def release(self, name: str) -> bool:
        """Return whether the process still held the lock."""
        self._held.discard(name)
        self._child.tell(json.dumps(["release", name, {}]))
        return self._child.expect("released") == "True"

    def kill(self) -> None:
        self._child.kill()

    def release_all(self) -> None:
        for name in [*self._held]:
            self.release(name)


class Session:
    """The topologies that run, and the other process of each. They start once in a session."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._topologies: dict[str, Topology] = {}
        self._others: dict[str, Other] = {}

    def topology(self, name: str) -> Topology:
        if name not in self._topologies:
            self._topologies[name] = self._stack.enter_context(TOPOLOGIES[name]())
        return self._topologies[name]

    def take_other(self, name: str) -> Other:
        """Return the process. It is not used again unless the test gives it back."""
        if name in self._others:
            return self._others.pop(name)
        environment = self.topology(name).environment
        return Other(self._stack.enter_context(Child(OTHER, **environment)))

    def give_back(self, name: str, other: Other) -> None:
        self._others[name] = other


@pytest.fixture(scope="session")
def running() -> Iterator[Session]:
    with ExitStack() as stack:
        yield Session(stack)


def sorts(*names: str) -> list[Any]:
    """Return parameters for the fixture `topology`."""
    # One test process runs all tests of a topology, so that its servers start once.
    return [
        pytest.param(name, id=name, marks=pytest.mark.xdist_group(f"topology-{name}"))
        for name in names
    ]


@pytest.fixture(params=sorts(*TOPOLOGIES))
def topology(request: pytest.FixtureRequest, running: Session) -> Iterator[Topology]:
    """Servers on which this process has its locks. The test must leave no key behind."""
    topology = running.topology(request.param)
    with override_settings(**topology.settings):
        yield topology
    observers = topology.observers()
    left = [key for client in observers for key in wait_for_none_left(client)]
    for client in observers:
        client.flushall()
        client.close()
    assert not left, f"Left behind: {', '.join(left)}"


@pytest.fixture
def other(request: pytest.FixtureRequest, topology: Topology, running: Session) -> Iterator[Other]:
    name = request.node.callspec.params["topology"]
    other = running.take_other(name)
    yield other
    # After a failed test the process may still wait for a lock.
    if request.node.stash.get(FAILED, False):
        other.kill()
    else:
        other.release_all()
        running.give_back(name, other)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report
