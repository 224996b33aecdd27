"""What clients do beside `client.loop`, called by their paths."""

import time
from typing import Any

from redis.exceptions import RedisError

from django_redislock import locks

from .client import Client, acquire, release, write

EVERY = 0.05  # seconds between two looks at a lock that is held


def keep(client: Client, lock: str, between: float = 0, **options: Any) -> str:
    """Hold it as soon as that succeeds, and write, again and again, a little after having looked,
    until it is lost or there is another order; then let go of it. Tells which."""
    while not _acquires(client, lock, options):
        if client.is_told():
            return "failed"
        time.sleep(EVERY)
    while write(client, lock, between)["wrote"]:
        if client.is_told():
            client.log.write("free", lock=lock)
            release(client, lock)
            return "released"
        time.sleep(EVERY)
    return "lost"


def _acquires(client: Client, lock: str, options: dict[str, Any]) -> bool:
    try:
        return acquire(client, lock, **options)
    except RedisError:
        return False


def look(client: Client, lock: str) -> int:
    """See again and again that it is held, and all else that can be told of it; how often."""
    done = 0
    while not client.is_told():
        info = locks.get(lock)
        assert info, f"{lock} is not held"
        assert info.token, f"nobody holds {lock}"
        assert lock in {each.name for each in locks.active()}
        locks.queue(lock)
        locks.history(lock)
        done += 1
    return done
