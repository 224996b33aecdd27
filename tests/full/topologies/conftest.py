import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from django.test import override_settings

from tests.servers import MAKES
from tests.tools import Child, wait_for_none_left

from . import places, topologies
from .topologies import Running, Topology

TOPOLOGIES: dict[str, Callable[[], Running]] = {
    "tcp-valkey-9.1": partial(topologies.single, "core", "valkey-9.1"),
    "cluster-acl": partial(topologies.cluster_acl, "valkey-9.1"),
}

BRIEF: dict[str, Callable[[], Running]] = {
    "acl-redis-6.2": partial(topologies.acl, "core", "redis-6.2"),
    "core-sentinels": partial(topologies.sentinels, "core_sentinels", "core"),
    "tls": partial(topologies.tls, "core"),
    "django-redis-shards": topologies.shards,
    "django-valkey": partial(topologies.single, "django_valkey"),
}
"""Of these, only what is marked ``everywhere`` is not slow."""

SLOW: dict[str, Callable[[], Running]] = {
    **{f"tcp-{make}": partial(topologies.single, "core", make) for make in MAKES[1:]},
    "unix": partial(topologies.unix, "core"),
    **{f"acl-{make}": partial(topologies.acl, "core", make) for make in MAKES[:-1]},
    "resp2": partial(topologies.single, "core", protocol=2),
    "resp3": partial(topologies.single, "core", protocol=3),
    "django-redis": partial(topologies.single, "django_redis"),
    "django-redis-herd": partial(
        topologies.single, "django_redis", CLIENT_CLASS="django_redis.client.HerdClient"
    ),
    **{f"cluster-{make}": partial(topologies.cluster, make) for make in MAKES},
    "django-redis-sentinels": partial(topologies.sentinels, "django_redis_sentinels", "django"),
    "django-redis-unix": partial(topologies.unix, "django_redis"),
    "django-redis-tls": partial(topologies.tls, "django_redis"),
    "django-redis-acl": partial(topologies.acl, "django_redis", "valkey-9.1"),
    **{f"cluster-acl-{make}": partial(topologies.cluster_acl, make) for make in MAKES[1:]},
    "cluster-resp3": partial(topologies.cluster, protocol=3),
}
"""Those that differ least from the others."""

ALL = TOPOLOGIES | BRIEF | SLOW


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("topology") in BRIEF and not item.get_closest_marker("everywhere"):
            item.add_marker(pytest.mark.slow)


def sorts(*names: str) -> list[Any]:
    """Parameters for the fixture `topology`."""
    return [_parameter(name) for name in names]


def _parameter(name: str) -> Any:
    # One process has all tests of a topology, so that its servers are started once.
    marks = [pytest.mark.xdist_group(f"topology-{name}")]
    return pytest.param(name, id=name, marks=marks + [pytest.mark.slow] * (name in SLOW))


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[[str], Topology]]:
    """Start a topology, or give the one that runs. In random order a fixture with parameters
    would start it many times."""
    running: dict[str, Topology] = {}
    with ExitStack() as stack:

        def start(name: str) -> Topology:
            if name not in running:
                running[name] = stack.enter_context(ALL[name]())
            return running[name]

        yield start


@pytest.fixture(params=sorts(*ALL))
def topology(request: pytest.FixtureRequest, start) -> Iterator[Topology]:
    """Servers that are up, on which this process's locks live, and nothing stays behind."""
    topology = start(request.param)
    with override_settings(**topology.settings):
        yield topology
    observers = topology.observers()
    left = [key for client in observers for key in wait_for_none_left(client)]
    for client in observers:
        client.flushall()
        client.close()
    assert not left, f"Left behind: {', '.join(left)}"


STARTS_WITHIN = 60
"""Seconds that a process is given to come up on a busy machine."""

OTHER = """
import json
from django_redislock import LockNotOwnedError, locks

held = {}
locks.ping()  # it is connected before anything is bounded
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
    """Another process that uses locks as it is told."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._held: set[str] = set()
        self._owes_answers = 0

    @property
    def is_ready(self) -> bool:
        """Whether it lives and has answered all that it was told: a test that fails may leave it
        otherwise, and the next would take its answer for its own."""
        return not self._owes_answers and self._child.process.poll() is None

    def end(self) -> None:
        self._child.kill()

    def acquire(self, name: str, **options: Any) -> int | None:
        """The fencing token, if it gets the lock."""
        self.begin_to_acquire(name, **options)
        return self.acquired(name)

    def begin_to_acquire(self, name: str, **options: Any) -> None:
        self._tell("acquire", name, options)

    def acquired(self, name: str) -> int | None:
        """Waits until it says so."""
        got, fence = self._answer("acquired").split()
        if got == "False":
            return None
        self._held.add(name)
        return int(fence)

    def release(self, name: str) -> bool:
        """Whether it still was the holder."""
        self._held.discard(name)
        self._tell("release", name, {})
        return self._answer("released") == "True"

    def release_all(self) -> None:
        for name in [*self._held]:
            self.release(name)

    def _tell(self, what: str, name: str, options: dict[str, Any]) -> None:
        self._owes_answers += 1
        self._child.tell(json.dumps([what, name, options]))

    def _answer(self, what: str) -> str:
        answer = self._child.expect(what)
        self._owes_answers -= 1
        return answer


class Others:
    """For each topology the process that is told; it takes a second to start one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Other] = {}

    def of(self, topology: Topology) -> Other:
        key = topology.environment[places.VARIABLE]
        if key not in self._started:
            child = self._stack.enter_context(Child(OTHER, **topology.environment))
            child.expect("ready", timeout=STARTS_WITHIN)
            self._started[key] = Other(child)
        return self._started[key]

    def take_back(self, topology: Topology, other: Other) -> None:
        """It has nothing any more, and is there for the next test if it can be."""
        if other.is_ready:
            other.release_all()
        else:
            del self._started[topology.environment[places.VARIABLE]]
            other.end()


@pytest.fixture(scope="session")
def others() -> Iterator[Others]:
    with ExitStack() as stack:
        yield Others(stack)


@pytest.fixture
def other(topology: Topology, others: Others) -> Iterator[Other]:
    other = others.of(topology)
    yield other
    others.take_back(topology, other)
