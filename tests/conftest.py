import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import redis
from django.utils import translation

from .tools import leftovers, wait_for_none_left

# A shared machine may stall any example; pytest-timeout bounds the whole test.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=40)
# For a long search: pytest --hypothesis-profile=long tests/fast/unit
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which names the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The workers of one module are started once, in one test process.
    for item in items:
        if item.get_closest_marker("celery"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


class LongestFirst:
    """Start the tests with the longest timeouts first, so that none runs alone at the end."""

    @pytest.hookimpl(trylast=True)  # after pytest-randomly
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=_most_seconds, reverse=True)


def _most_seconds(item: pytest.Item) -> float:
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout else 0


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # Many tests collect garbage. What was imported until now is not looked through each time.
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LongestFirst())


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """Each test process has a folder of its own: no suffix, or subprocesses miss the file."""


@pytest.fixture(scope="session")
def redis_server() -> Iterator[redis.Redis]:
    """The server as an observer sees it, past Django's cache and the product."""
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
        yield client


@pytest.fixture
def hold(nothing_left_behind: None) -> Iterator[Callable[..., Any]]:
    """Acquire a lock that is given back at the end, if it is then still held."""
    from django_redislock import LockNotOwnedError, locks  # not before the settings are there

    held = []

    def acquire(name: str, manager: Any = locks, **options: Any) -> Any:
        lock = manager.lock(name, **{"timeout": 30, "blocking": False} | options)
        assert lock.acquire()
        held.append(lock)
        return lock

    yield acquire
    for lock in held:
        with contextlib.suppress(LockNotOwnedError):
            lock.release()


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls is not taken for a server that hangs."""
    from django_redislock.engine import protocol  # not before the settings are there

    if not request.node.get_closest_marker("hurried"):
        monkeypatch.setattr(protocol, "FINAL_REPLY_TIMEOUT_SECONDS", 10.0)


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    """`LocaleMiddleware` leaves the language of the last request active in the thread."""
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def nothing_left_behind(redis_server: redis.Redis) -> Iterator[None]:
    """Fail a test that leaves keys of the package, except for the documented ones.

    A release by a thread or a worker may take a moment.
    """
    yield
    left: list[str] = []
    if leftovers(redis_server):
        left = wait_for_none_left(redis_server)
        redis_server.flushdb()
    _release_all()
    if left:
        pytest.fail("Left behind in Redis: " + ", ".join(left), pytrace=False)


def _release_all() -> None:
    """End what this process holds, which a traceback may keep alive, and what it is giving back,
    which may take seconds: the next ones use the same names, count commands, hear of losses."""
    from django_redislock.engine import registry, renewer, runners  # not before the settings

    for each in registry.all_holds():
        each.lease.end()
        registry.remove(each)
    for book in renewer.thread_renewers():
        book._to_release.clear()
    runners._thread_inboxes.clear()  # they know times of a clock that a test may have moved
