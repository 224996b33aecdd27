"""Greenlets beside an event loop: asyncio knows one loop for each thread of the system."""

import sys

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
        may_end.wait()  # here other greenlets run, and this one's task is the loop's
        lock.assert_held()

def beside():
    runs.wait()
    with locks.lock("plain", timeout=30) as plain:
        assert not locks.lock("of a task", reentrant=True, blocking=False).acquire()
        other = gevent.spawn(locks.lock("plain", reentrant=True, blocking=False).acquire)
        assert not other.get()
        waits_for_task.wait()
        may_end.set()
        task.join()
        plain.assert_held()  # though no loop runs any more

def waits():
    runs.wait()
    with locks.lock("of a task", blocking_timeout=60):
        pass

def lets_it_wait():
    while not locks.queue("of a task"):
        gevent.sleep(0.01)
    waits_for_task.set()

task = gevent.spawn(asyncio.run, blocked())
for each in gevent.joinall([task, *map(gevent.spawn, [beside, waits, lets_it_wait])]):
    each.get()
print("as they should")
"""


def test_a_greenlet_is_not_taken_for_the_task_that_runs_in_another(redis_server):
    done = run_process(program=[sys.executable, "-c", PROGRAM])
    assert done.stdout == "as they should\n", done.stderr
