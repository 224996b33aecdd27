"""Processes that fork while they hold locks. `tests/faults` covers kills and stops."""

import pytest

from django_redislock import locks
from tests.lock_tools import free
from tests.tools import Child, wait_until

FORKED = """
import os, threading
from django_redislock import LockNotOwnedError, locks
from tests.tools import wait_until

def say(text):  # in one piece, as two processes share the pipe
    os.write(1, f"{text}\\n".encode())

lock = locks.lock("a", timeout=2)
lock.acquire()
say("holds")
hear()
pid = os.fork()
if pid == 0:
    try:
        lock.release()
    except LockNotOwnedError:
        say("child may not release")
    try:
        locks.assert_held("a")
    except LockNotOwnedError:
        say("child does not hold")
    say(f"child has {lock.token} {lock.fence_token} {lock.owned()} {lock.lost}")
    own = locks.lock("b", timeout=2)
    own.acquire()
    names = [thread.name for thread in threading.enumerate()]
    say(f"child renews {names.count('redislock-renewal')}")
    say(f"child asks {lock.acquire(blocking=False)}")
    wait_until(lambda: locks.get("a") is None)
    say(f"child lost {own.lost}")
    own.release()
    say("child released")
    os._exit(0)
say(f"parent {lock.owned()}")
os.waitpid(pid, 0)
hear()
"""


def test_a_forked_child_does_not_share_the_locks_of_its_parent():
    with Child(FORKED, PYTHONWARNINGS="ignore") as parent:
        parent.expect("holds")
        parent.tell()
        said = sorted(parent.expect("") for _ in range(6))
        assert said == [
            "child asks False",
            "child does not hold",
            "child has None None False False",
            "child may not release",
            "child renews 1",
            "parent True",
        ]
        # The parent still renews, regardless of its child.
        renewed = locks.get("a").expires_at
        wait_until(lambda: locks.get("a").expires_at > renewed)
        parent.kill()
        # Nobody renews the lease, although the child lives.
        free(locks, "a", timeout=4)
        free(locks, "b")


FORKED_WITHOUT_HOOKS = """
import ctypes, os, time
from django_redislock import locks
from tests.tools import wait_until

with locks.lock("a"):
    pass
time.sleep(0.2)  # until the renewal sleeps: it must not be about to ask for the interpreter's lock
if pid := ctypes.PyDLL(None).fork():
    os.waitpid(pid, 0)
    hear()
lock = locks.lock("a", timeout=1)
lock.acquire()
begun = locks.get("a").expires_at
wait_until(lambda: lock.lost or locks.get("a").expires_at > begun, timeout=10)
say(f"lost {lock.lost}")
os._exit(0)
"""


def test_a_child_that_was_forked_without_pythons_hooks_renews_too():  # as uWSGI forks
    with Child(FORKED_WITHOUT_HOOKS, PYTHONWARNINGS="ignore") as parent:
        parent.expect("lost False")


FORKS_WHILE_THREADS_USE_LOCKS = """
import os
from threading import Thread
from django.conf import settings
from django.core.cache import cache
from django.test import override_settings
from django_redislock import locks

settings.CACHES["default"]["BACKEND"] = os.environ["BACKEND"]
override_settings(CACHES=settings.CACHES).enable()
cache.get("x")

def use():
    for _ in range(30):
        with locks.lock("a", timeout=30):
            pass

use()
threads = [Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
pids = []
for _ in range(6):
    pids.append(os.fork())
    if not pids[-1]:
        use()
        cache.get("x")
        os._exit(0)
for thread in threads:
    thread.join()
print([os.waitpid(pid, 0)[1] for pid in pids], flush=True)
"""


@pytest.mark.parametrize(
    "backend",
    ["django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"],
)
def test_children_use_locks_and_cache_although_threads_used_locks_at_the_fork(backend):
    with Child(FORKS_WHILE_THREADS_USE_LOCKS, BACKEND=backend, PYTHONWARNINGS="ignore") as parent:
        assert parent.expect("") == str([0] * 6)
    free(locks, "a")


CLOSED_LOOP = """
import asyncio
import gc
from django_redislock import locks

async def use():
    holder = locks.lock("a", timeout=3)
    await holder.aacquire()
    waits = asyncio.create_task(wait())
    while not await locks.aqueue("a"):
        await asyncio.sleep(0.01)
    await holder.arelease()
    await waits
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert names > {"redislock-inbox", "redislock-renewal"}, names

async def wait():
    async with locks.lock("a"):
        pass

for _ in range(2):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    del loop
    gc.collect()
say("done")
"""


def test_a_loop_that_is_closed_without_shutdown_logs_nothing(redis_server, capfd):
    with Child(CLOSED_LOOP) as child:
        child.expect("done")
        assert child.wait() == 0
    assert capfd.readouterr().err == ""
