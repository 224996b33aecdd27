"""Greenlets next to an event loop. asyncio has one loop for each thread of the system."""

import sys

import pytest

from tests.commands import run_process

PROGRAM = """
from gevent import monkey
monkey.patch_all()
import asyncio
import django, gevent
from gevent.event import Event
django.setup()
from django_redislock import locks

runs, may_end, waits_for_task = Event(), Event(), Event()

async def blocked():
    async with locks.lock("of a task", timeout=30) as lock:
        runs.set()
        may_end.wait()  # other greenlets run, and this task is still the loop's current task
        lock.assert_held()

def plain_holder():
    runs.wait()
    with locks.lock("plain", timeout=30) as plain:
        assert not locks.lock("of a task", reentrant=True, blocking=False).acquire()
        other = gevent.spawn(locks.lock("plain", reentrant=True, blocking=False).acquire)
        assert not other.get()
        waits_for_task.wait()
        may_end.set()
        task.join()
        plain.assert_held()  # the loop has ended

def waits():
    runs.wait()
    with locks.lock("of a task", blocking_timeout=60):
        pass

def lets_it_wait():
    while not locks.queue("of a task"):
        gevent.sleep(0.01)
    waits_for_task.set()

task = gevent.spawn(asyncio.run, blocked())
for each in gevent.joinall([task, *map(gevent.spawn, [plain_holder, waits, lets_it_wait])]):
    each.get()
print("as they should")
"""


def test_a_greenlet_is_not_confused_with_a_task_in_another_greenlet(redis_server):
    done = run_process(program=[sys.executable, "-c", PROGRAM])
    assert done.stdout == "as they should\n", done.stderr


REFUSED = """
import sys
from gevent import monkey
if sys.argv[1] == "in part":
    monkey.patch_all(thread=False)
import django, gevent
django.setup()
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django_redislock import locks

if sys.argv[1] == "late":
    with locks.lock("a"):
        pass
    monkey.patch_all()

def use():
    try:
        with locks.lock("a", timeout=5):
            gevent.sleep(0.1)
        return "used"
    except ImproperlyConfigured:
        return "refused"

greenlets = [gevent.spawn(use) for _ in range(3)]
gevent.joinall(greenlets)
found = checks.run_checks(tags=["caches"])
print(*[each.value for each in greenlets], *[each.id for each in found])
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("patched", ["in part", "late"])
def test_a_process_that_is_not_patched_as_it_must_be_refuses_locks(redis_server, patched):
    """Without an error it would wait forever."""
    done = run_process(program=[sys.executable, "-c", REFUSED, patched])
    assert done.stdout == "refused refused refused redislock.E005\n", done.stderr
