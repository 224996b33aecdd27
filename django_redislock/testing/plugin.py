"""Fixtures for pytest, there as soon as the package is installed. Until one is asked for, nothing
is imported, connected or started."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .server import EmbeddedServer


@pytest.fixture
def embedded_redis() -> Iterator["EmbeddedServer"]:
    """Locks, and caches on Redis, live on an embedded server in this test, empty at first.

    Gives the server; see `django_redislock.testing.embedded_redis`. Each process of pytest-xdist
    has one of its own.
    """
    from . import embedded_redis

    with embedded_redis() as server:
        yield server


@pytest.fixture
def nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a lock held, with the locks and who holds them.

    For one test, or for all by the line ``usefixtures = nothing_held`` in pytest's configuration.
    """
    from . import assert_nothing_held

    embedded = "embedded_redis" in request.fixturenames
    server = request.getfixturevalue("embedded_redis") if embedded else None  # is to end later
    yield
    if server is None or server.is_started:  # one that the test stopped has nothing
        assert_nothing_held()
