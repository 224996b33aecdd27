"""A redis-py with other private names, and the end of a process."""

import re
import shutil
from pathlib import Path

import redis

from django_redislock import locks
from tests.tools import Child

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
