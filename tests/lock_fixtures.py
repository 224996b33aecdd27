import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_redislock import LockManager, clock, locks
from django_redislock.engine import renewer
from django_redislock.signals import task_skipped

from .faults.proxy import Proxy
from .lock_tools import listening
from .servers import Node

CORE = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"


@pytest.fixture
def manager() -> LockManager:
    """The locks of the alias `default`."""
    return locks.using("default")


@pytest.fixture
def own_server() -> Iterator[Node]:
    """A server that the test may stop, flush or reconfigure."""
    with Node() as server:
        yield server


@pytest.fixture(params=[CORE, DJANGO_REDIS], ids=["core", "django_redis"])
def either_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def own_redis(own_server: Node) -> Iterator[redis.Redis]:
    """`own_server` as an observer sees it."""
    with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def alias_on(settings):
    """Make an alias of CACHES on a server, and give its locks."""

    def make(url: str, *, alias: str = "own", backend: str = CORE, **options) -> LockManager:
        entry = {"BACKEND": backend, "LOCATION": url, "KEY_PREFIX": "own", "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, alias: entry}
        return locks.using(alias)

    return make


@pytest.fixture
def own_locks(alias_on, own_server) -> LockManager:
    return alias_on(own_server.url)


@pytest.fixture
def three_servers(settings) -> Iterator[list[str]]:
    """Aliases of three servers."""
    with Node() as second, Node() as third:
        for alias, server in (("second", second), ("third", third)):
            cache = {**settings.CACHES["default"], "LOCATION": server.url}
            settings.CACHES = {**settings.CACHES, alias: cache}
        yield ["default", "second", "third"]


@pytest.fixture
def proxied(alias_on, own_server) -> Iterator[tuple[LockManager, Proxy]]:
    """Locks of a server behind a proxy. Their client waits for replies without a time limit."""
    with Proxy("127.0.0.1", own_server.port) as proxy:
        yield alias_on(proxy.through(own_server.url), socket_timeout=None), proxy


class FakeClock:
    """Replaces `django_redislock.clock.now`. It runs at the usual speed, plus what the test adds.

    The server's clock is not moved. If it is moved by half of a lease, the renewal is due, and the
    server still keeps the lock. If it is moved by more than a lease, the holder takes the lock for
    lost, and the server still keeps it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self._ahead = clock.now, 0.0
        monkeypatch.setattr(clock, "now", self.now)

    def now(self) -> float:
        return self._real() + self._ahead

    def pass_time(self, seconds: float) -> None:
        self._ahead += seconds

    def forward(self, seconds: float) -> None:
        """Move it forward, and have the renewal threads do what is due then."""
        self.pass_time(seconds)
        for book in renewer.thread_renewers():
            book.run_once()


@pytest.fixture
def moving_clock(monkeypatch) -> FakeClock:
    """The clock of the holders, which the test moves forward."""
    return FakeClock(monkeypatch)


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """Give SIGTERM its default action, whatever other tests have left."""
    gc.collect()  # leaders of other tests
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def skipped() -> Iterator[list[dict[str, Any]]]:
    """The arguments of each signal about a skipped task."""
    received = []
    with listening(task_skipped, lambda **facts: received.append(facts)):
        yield received
