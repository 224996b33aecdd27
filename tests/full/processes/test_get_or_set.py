"""locks.get_or_set() in several processes: one of many threads computes."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.core.cache import cache

from django_redislock import locks
from tests.lock_tools import waiting
from tests.tools import Child

PROCESSES = 4
THREADS = 50

ASK = f"""
import os, threading, time
from django_redislock import locks

def compute():
    os.write(1, b"computes\\n")
    hear()
    return time.time()

delays = []
errors = []

def ask():
    try:
        value = locks.get_or_set("many", compute, 60, lease=2)
        delays.append(time.time() - value)
    except Exception as error:
        errors.append(repr(error))

threads = [threading.Thread(target=ask) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say(f"ended {{len(delays)}} {{max(delays)}} {{errors}}")
"""


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    yield
    cache.clear()


def test_one_of_200_callers_in_4_processes_computes():
    with ExitStack() as stack:
        first = stack.enter_context(Child(ASK))
        first.expect("computes")
        others = [stack.enter_context(Child(ASK)) for _ in range(PROCESSES - 1)]
        waiting(locks, "cache:default:many", PROCESSES)
        first.tell()
        for child in (first, *others):
            count, delay, errors = child.expect("ended").split(maxsplit=2)
            assert (int(count), errors) == (THREADS, "[]")
            assert float(delay) < 60  # it is 0.1, but not on a busy machine
