"""Clients in other processes."""

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import redis

from django_redislock import locks
from django_redislock.lua import ACQUIRE
from tests.commands import run_process
from tests.faults.proxy import Proxy, runs
from tests.servers import Node
from tests.tools import ROOT, Child, leftovers, wait_until

USE = """
import asyncio
from django_redislock import locks
async def use():
    for _ in range(3):
        async with locks.lock("a", timeout=30) as lock:
            assert await lock.aowned()
for _ in range(3):
    with locks.lock("a", timeout=30) as lock:
        assert lock.owned()
asyncio.run(use())
say("used")
"""


PRIVATE = r"\b(_available_connections|_in_use_connections|_lock|_sock|_reader|_writer)\b"


def test_a_redis_py_release_with_other_private_names_works(tmp_path):
    package = tmp_path / "redis"
    shutil.copytree(
        Path(redis.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for module in package.rglob("*.py"):
        module.write_text(re.sub(PRIVATE, r"\1_renamed", module.read_text()))
    with Child(USE, PYTHONPATH=str(tmp_path)) as child:
        child.expect("used")


STOPPED = """
import asyncio
from django.conf import settings
from django_redislock import locks
url, colour, is_connected = sys.argv[1:]
settings.CACHES["own"] = settings.CACHES["default"] | {"LOCATION": url}
own = locks.using("own")
lock = own.lock("a", timeout=30, blocking_timeout=0.1)
async def acquire():
    if is_connected:
        await own.acount()
    say("ready")
    hear()
    say(f"acquired {await lock.aacquire()}")
    await lock.arelease()
if colour == "async":
    asyncio.run(acquire())
else:
    say("ready")
    hear()
    say(f"acquired {lock.acquire()}")
    lock.release()
"""


@pytest.mark.parametrize(("colour", "is_connected"), [("sync", ""), ("async", "yes")])
def test_a_reply_that_arrived_while_the_process_was_stopped(
    alias_on, own_server, colour, is_connected
):
    """The reply is to the script, or to the first command of a new connection."""
    with alias_on(own_server.url).lock("a"):
        pass
    with (
        Proxy("127.0.0.1", own_server.port) as proxy,
        Child(STOPPED, proxy.through(own_server.url), colour, is_connected) as child,
    ):
        child.expect("ready")
        delay = proxy.delay_reply(runs(ACQUIRE) if is_connected else bool, 0.3)
        child.tell()
        wait_until(delay.has_begun)
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(delay.is_done)
        time.sleep(1)  # longer than the timeout of the reply
        os.kill(child.pid, signal.SIGCONT)
        assert child.expect("acquired") == "True"
        assert child.wait() == 0


FORKED = """
import gc, os, warnings
from django_redislock import locks

warnings.simplefilter("always", ResourceWarning)
lock = locks.lock("a")
lock.acquire()
pid = os.fork()
del lock
gc.collect()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
say("done")
"""


def test_the_copy_of_a_forked_child_does_not_warn(capfd):
    with Child(FORKED) as child:
        child.expect("done")
    assert capfd.readouterr().err.count("'a' was not released") == 1  # from the parent
    assert locks.force_release("a") == 1


# No functions: they would make the module a reference cycle, whose locks never warn.
AT_EXIT = """
import django
django.setup()
from django_redislock import locks
lock = locks.lock("a")
lock.acquire()
"""


def test_the_end_of_the_process_does_not_warn(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    program = [sys.executable, "-W", "always::ResourceWarning", str(script)]
    done = run_process(program=program, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "lock object" not in done.stderr
    assert locks.force_release("a") == 1


OUTLIVES = """
import threading
from django.conf import settings
from django_redislock import locks
for number, url in enumerate(sys.argv[1:]):
    settings.CACHES[f"q{number}"] = settings.CACHES["default"] | {"LOCATION": url}
def hold():
    with locks.quorum("a", ["q0", "q1", "q2"], timeout=30):
        threading.main_thread().join()
    with locks.quorum("a", ["q0", "q1", "q2"], timeout=30):
        say("held again")
threading.Thread(target=hold).start()
"""


def test_a_thread_that_outlives_the_main_one_can_release_a_quorum():
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Node()) for _ in range(3)]
        child = stack.enter_context(Child(OUTLIVES, *(node.url for node in nodes)))
        child.expect("held again")
        assert child.wait() == 0
        assert not any(leftovers(node.client()) for node in nodes)


EXITS = """
import atexit
from django_redislock import locks
def use():
    with locks.lock("a", timeout=30, blocking_timeout=5) as lock:
        say(f"owned {lock.owned()}")
    say(f"left {locks.get('a')}")
    with locks.lock("a", timeout=30, auto_renewal=False, blocking=False) as lock:
        say(f"owned {lock.owned()}")
atexit.register(use)
locks.lock("kept", timeout=1).acquire()
kept = locks.lock("b", timeout=1)
kept.acquire()
"""


def test_a_lock_is_acquired_and_released_at_interpreter_exit():
    """A process can exit while it holds locks."""
    with Child(EXITS) as child:
        assert child.expect("owned") == "True"
        assert child.expect("left") == "None"
        assert child.expect("owned") == "True"
        assert child.wait() == 0
    assert locks.get("a") is None
    for name in ("kept", "b"):
        locks.force_release(name)
