"""Fixtures for pytest, available as soon as the package is installed. A fixture that is not used
imports and starts nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .server import EmbeddedServer


@pytest.fixture
def embedded_redis() -> Iterator["EmbeddedServer"]:
    """Put locks and Redis caches on an empty embedded server for this test.

    Returns the server. `django_redislock.testing.embedded_redis` has the details. Each process of
    pytest-xdist has a server of its own.
    """
    from . import embedded_redis

    with embedded_redis() as server:
        yield server


@pytest.fixture
def nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a lock is still held at its end. The message names the holders.

    Use it in one test, or in all tests with ``usefixtures = nothing_held`` in the configuration of
    pytest.
    """
    from . import assert_nothing_held

    embedded = "embedded_redis" in request.fixturenames
    server = request.getfixturevalue("embedded_redis") if embedded else None  # to end later
    yield
    if server is None or server.is_started:  # A stopped server has no locks.
        assert_nothing_held()
