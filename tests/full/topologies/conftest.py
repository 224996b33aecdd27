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

START_SECONDS = 60
"""Limit for the start of a process on a busy machine."""

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

    def __init__(self, topology: Topology) -> None:
        self._child = Child(OTHER, **topology.environment)
        self._child.expect("ready", timeout=START_SECONDS)
        self._held: set[str] = set()

    def acquire(self, name: str, **options: Any) -> int | None:
        """Return the fencing token, or None if the lock was not acquired."""
        self.start_acquire(name, **options)
        return self.acquired(name)

    def start_acquire(self, name: str, **options: Any) -> None:
        self._tell("acquire", name, options)

    def acquired(self, name: str) -> int | None:
        """Wait for the result of `start_acquire`."""
        got, fence = self._child.expect("acquired").split()
        if got == "False":
            return None
        self._held.add(name)
        return int(fence)

    def release(self, name: str) -> bool:
        """Return whether the process still held the lock."""
        self._held.discard(name)
        self._tell("release", name, {})
        return self._child.expect("released") == "True"

    def release_all(self) -> None:
        for name in [*self._held]:
            self.release(name)

    def end(self) -> None:
        self._child.__exit__(None, None, None)

    def _tell(self, what: str, name: str, options: dict[str, Any]) -> None:
        self._child.tell(json.dumps([what, name, options]))


def sorts(*names: str) -> list[Any]:
    """Return parameters for the fixture `topology`."""
    # One test process runs all tests of a topology, so that its servers start once.
    return [
        pytest.param(name, id=name, marks=pytest.mark.xdist_group(f"topology-{name}"))
        for name in names
    ]


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[[str], Topology]]:
    """Start a topology once. In random order, a fixture with parameters would start it again."""
    running: dict[str, Topology] = {}
    with ExitStack() as stack:

        def start(name: str) -> Topology:
            if name not in running:
                running[name] = stack.enter_context(TOPOLOGIES[name]())
            return running[name]

        yield start


@pytest.fixture(params=sorts(*TOPOLOGIES))
def topology(request: pytest.FixtureRequest, start) -> Iterator[Topology]:
    """The servers with the locks of this process. The test must leave no key behind."""
    topology = start(request.param)
    with override_settings(**topology.settings):
        yield topology
    observers = topology.observers()
    left = [key for client in observers for key in wait_for_none_left(client)]
    for client in observers:
        client.flushall()
        client.close()
    assert not left, f"Left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def others() -> Iterator[dict[str, Other]]:
    """The other process of each topology."""
    others: dict[str, Other] = {}
    yield others
    for other in others.values():
        other.end()


@pytest.fixture
def other(topology: Topology, others: dict[str, Other]) -> Iterator[Other]:
    key = str(topology.environment)
    other = others[key] = others.pop(key, None) or Other(topology)
    yield other
    try:
        other.release_all()
    except (AssertionError, OSError):  # unread replies of a failed test
        others.pop(key).end()
        raise
