from collections.abc import Iterator

import pytest
import redis
from django.test import Client

from tests.pages import user_with

from .forging import Tenant


@pytest.fixture
def tenant(redis_server: redis.Redis) -> Iterator[Tenant]:
    """Who shares the server of the locks, and reads and writes bytes there."""
    told = redis_server.connection_pool.connection_kwargs
    redis_server.flushdb()
    with redis.Redis(host=told["host"], port=told["port"], db=told["db"]) as client:
        yield Tenant(client)
    redis_server.flushdb()


@pytest.fixture
def operator(db: None) -> Client:
    """Who may see locks in the admin, and release them."""
    return user_with("view_activelock", "release_activelock")
