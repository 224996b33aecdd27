"""What a process of the crew does: cycles for so many seconds, and how many it came to."""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping

from django_redislock import locks
from django_redislock.keys import BUCKETS, Keys
from django_redislock.lua import ACQUIRE, RELEASE
from tests.servers import Node

from .replay import replay

OF_EACH = 2  # locks of each bucket that a process takes in turn or, replayed, at a time

Addresses = Mapping[int, tuple[str, int]]  # of the servers that keep the buckets


def prepare(nodes: Iterable[Node]) -> None:
    """Have servers know the scripts."""
    for node in nodes:
        for script in (ACQUIRE, RELEASE):
            node.client().script_load(script.source)


def by_locks(keys: Keys, addresses: Addresses, seconds: float) -> int:
    held = [locks.lock(name) for name in _names(keys)]
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for lock in held:
            lock.acquire()
            lock.release()
        done += len(held)
    return done


def replayed(keys: Keys, addresses: Addresses, seconds: float) -> int:
    names = _names(keys)
    return replay(keys, [(name, addresses[keys.of(name).bucket]) for name in names], seconds)


def _names(keys: Keys) -> list[str]:
    """Of locks that nobody else asks for, as many of each bucket."""
    left, names = Counter(dict.fromkeys(range(BUCKETS), OF_EACH)), list[str]()
    while left.total():
        name = uuid.uuid4().hex
        if left[keys.of(name).bucket]:
            left[keys.of(name).bucket] -= 1
            names.append(name)
    return names
