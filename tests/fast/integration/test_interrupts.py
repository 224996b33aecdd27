"""An interrupt leaves no unread reply and no connection in use: a few of the steps that
tests/full/processes/test_interrupts.py tries."""

import random

import pytest
import redis

from tests.faults.proxy import Proxy
from tests.interrupts import Case, cancel_everywhere, interrupt_everywhere, make_client

DELAY_SECONDS = 0.003

STEPS_APART = 240


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


def test_an_interrupt_leaves_no_unread_reply_and_no_connection_in_use(url, observer):
    first = random.randint(1, STEPS_APART)
    case = Case(lambda: make_client(url), observer)
    places = interrupt_everywhere(case, first=first, every=STEPS_APART)
    assert len(places) > 1, places


async def test_a_cancellation_leaves_no_unread_reply_and_no_connection_in_use(url, observer):
    assert await cancel_everywhere(url, observer) > 1
