import os
from collections.abc import Iterator

import pytest
import redis


@pytest.fixture
def redis_client() -> Iterator[redis.Redis]:
    """As the product sees the server: it answers in bytes."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        yield client
