from collections.abc import Iterator

import pytest
import redis
from django.test import Client

from tests.lock_fixtures import alias_on  # noqa: F401  a fixture
from tests.pages import user_with

from .forging import Tenant


@pytest.fixture
def tenant(redis_server: redis.Redis) -> Iterator[Tenant]:
    """Another tenant of the server of the locks, who reads and writes bytes there."""
    address = redis_server.connection_pool.connection_kwargs
    redis_server.flushdb()
    wanted = "host", "port", "db", "username", "password"
    with redis.Redis(**{name: address[name] for name in wanted if name in address}) as client:
        yield Tenant(client)
    redis_server.flushdb()


@pytest.fixture
def operator(db: None) -> Client:
    """A client of a user who may see and release locks in the admin."""
    return user_with("view_activelock", "release_activelock")
