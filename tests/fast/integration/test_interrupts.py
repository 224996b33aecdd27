"""An interrupt leaves no unread reply and no connection in use: a few of the steps that
tests/full/processes/test_interrupts.py tries."""

import random
import sys
import threading
from itertools import count
from typing import Any

import pytest
import redis

from django_redislock import locks
from tests.faults.proxy import Proxy
from tests.interrupts import Case, cancel_everywhere, interrupt_everywhere, make_client
from tests.tools import wait_until

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


@pytest.mark.parametrize("end", ["release", "block"])
def test_an_interrupt_at_the_begin_of_any_function_of_a_release_leaves_no_lock(end) -> None:
    """CPython calls signal handlers when a function begins."""

    def interrupt_at(number: int) -> bool:
        """Release, and return whether that was interrupted when the function was called."""
        calls = 0

        def trace(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            is_ours = "django_redislock" in frame.f_code.co_filename
            if event != "call" or not is_ours or threading.current_thread() is not here:
                return
            calls += 1
            # The first is release() or __exit__() itself.
            if calls == number + 1:
                sys.settrace(None)
                raise KeyboardInterrupt

        here = threading.current_thread()
        lock = locks.lock("a")
        kept.append(lock)  # or its end would release it
        assert lock.acquire()
        sys.settrace(trace)
        try:
            lock.release() if end == "release" else lock.__exit__(None, None, None)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    kept: list[Any] = []
    for number in count(1):
        was_interrupted = interrupt_at(number)
        wait_until(lambda: locks.get("a") is None)
        if not was_interrupted:
            break
    assert number > 5
