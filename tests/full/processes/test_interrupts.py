"""An interrupt at any step of a request leaves no unread reply, and no connection in use."""

import warnings

import pytest
import redis

from django_redislock import Lock
from tests.faults.proxy import Proxy
from tests.interrupts import (
    ASYNC_POOLS,
    LINES,
    POOLS,
    SIGNALS,
    Case,
    cancel_everywhere,
    interrupt_everywhere,
    make_client,
)

pytestmark = pytest.mark.timeout(900)

DELAY_SECONDS = 0.005
"""In each direction. It is longer than the time from an interrupt to the next request."""


@pytest.fixture
def proxy(own_server):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        proxy.delay(DELAY_SECONDS)
        yield proxy


@pytest.fixture
def url(proxy, own_server):
    return proxy.through(own_server.url)


@pytest.fixture
def observer(own_server):
    with redis.Redis.from_url(own_server.url) as client:
        yield client


@pytest.fixture(autouse=True)
def no_deprecation():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the arguments of get_connection
        yield


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "warm"])
@pytest.mark.parametrize("where", [SIGNALS, LINES])
@pytest.mark.parametrize("kind", POOLS)
def test_an_interrupt_at_any_step(url, observer, kind, where, is_warm):
    case = Case(lambda: make_client(kind, url), observer, is_warm, Lock, where)
    assert interrupt_everywhere(case)


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "warm"])
@pytest.mark.parametrize("kind", ASYNC_POOLS)
async def test_a_cancellation_at_any_await_point(url, observer, kind, is_warm):
    assert await cancel_everywhere(kind, url, observer, is_warm=is_warm) > 1
