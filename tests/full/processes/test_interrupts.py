"""An interrupt at any step of a request leaves no unread reply, and no connection in use.

A run tries one step in ``INTERRUPT_EVERY``, from a random one on. ``INTERRUPT_EVERY=1`` tries all.
"""

import os
import random

import pytest
import redis

from django_redislock import Lock
from tests.faults.proxy import Proxy
from tests.interrupts import (
    LINES,
    SIGNALS,
    Case,
    cancel_everywhere,
    interrupt_everywhere,
    make_client,
)

pytestmark = [
    pytest.mark.timeout(900),
    # redis-py reads a file for each connection, and an interrupt can keep it from closing that.
    pytest.mark.filterwarnings("ignore:unclosed file.*METADATA:ResourceWarning"),
]

DELAY_SECONDS = 0.005
"""In each direction. It is longer than the time from an interrupt to the next request."""

EVERY = int(os.environ.get("INTERRUPT_EVERY", "20"))


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


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "warm"])
@pytest.mark.parametrize("where", [SIGNALS, LINES])
def test_an_interrupt_at_any_step(url, observer, where, is_warm):
    case = Case(lambda: make_client(url), observer, is_warm, Lock, where)
    assert interrupt_everywhere(case, first=random.randint(1, EVERY), every=EVERY)


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "warm"])
async def test_a_cancellation_at_any_await_point(url, observer, is_warm):
    assert await cancel_everywhere(url, observer, is_warm=is_warm) > 1
