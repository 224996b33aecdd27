"""Users with permissions, an empty history, waiters, and further cache aliases."""

import contextlib
from threading import Thread

import pytest
from django.contrib import admin
from django.urls import path

from django_redislock import LockNotOwnedError, locks
from django_redislock.models import ActiveLock
from tests.lock_fixtures import three_servers  # noqa: F401  a fixture
from tests.pages import user_with
from tests.tools import wait_until


@pytest.fixture
def viewer(db):
    return user_with("view_activelock")


@pytest.fixture
def releaser(db):
    return user_with("view_activelock", "release_activelock")


urlpatterns: list[object] = []


@pytest.fixture
def serve(settings):
    """Serve the pages of an admin class."""

    def serve(admin_class):
        site = admin.AdminSite()
        site.register(ActiveLock, admin_class)
        urlpatterns[:] = [path("admin/", site.urls)]

    settings.ROOT_URLCONF = __name__
    return serve


@pytest.fixture
def empty_history(redis_server):
    redis_server.flushdb()


@pytest.fixture
def wait():
    """Wait for a lock in a thread until the end of the test."""
    started = []

    def begin(name, lock=None, **options):
        before = locks.get(name).waiters
        lock = lock or locks.lock(name, timeout=30, **options)
        thread = Thread(target=acquire_and_release, args=(lock,))
        thread.start()
        started.append((name, thread))
        wait_until(lambda: locks.get(name).waiters > before)

    yield begin
    for name, thread in started:
        while thread.is_alive():
            locks.force_release(name)
            thread.join(0.05)


def acquire_and_release(lock):
    with contextlib.suppress(LockNotOwnedError):  # the end of the test may force-release it
        lock.acquire(blocking_timeout=60)
        lock.release()


@pytest.fixture
def other(settings):
    """The locks of a second alias."""
    other = {**settings.CACHES["default"], "KEY_PREFIX": "other"}
    settings.CACHES = {**settings.CACHES, "other": other}
    return locks.using("other")


@pytest.fixture
def unusable(settings):
    """An alias whose server is unreachable, and one that is not on Redis."""
    settings.CACHES = {
        **settings.CACHES,
        "away": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"},
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
