"""More orders for clients, by path: functions that use locks, functions that select a deployment
of several servers (before any lock is used), and a user that is sync or async. The functions that
describe locks work with clients of any release.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.test import override_settings
from redis.exceptions import RedisError

from django_redislock import locks
from tests.full.topologies import places

from .client import (
    Acquisition,
    Client,
    acquire,
    do,
    pause,
    release,
    releasing,
    run,
    use_caches,
    write,
)
from .crew import CORE, PREFIX
from .crew import caches as of_one

CHECK_INTERVAL_SECONDS = 0.05


def keep(client: Client, lock: str, between: float = 0, **options: Any) -> str:
    """Acquire the lock, retrying on errors, then check it and write repeatedly until it is lost or
    there is another order. Release it in the second case, and return the outcome."""
    while not _acquires(client, lock, options):
        if client.has_order():
            return "failed"
        time.sleep(CHECK_INTERVAL_SECONDS)
    while write(client, lock, between)["wrote"]:
        if client.has_order():
            client.log.write("free", lock=lock)
            release(client, lock)
            return "released"
        time.sleep(CHECK_INTERVAL_SECONDS)
    return "lost"


def _acquires(client: Client, lock: str, options: dict[str, Any]) -> bool:
    try:
        return acquire(client, lock, **options)
    except RedisError:
        return False


def look(client: Client, lock: str) -> int:
    """Read all information about the lock repeatedly, and return how often."""
    done = 0
    while not client.has_order():
        info = locks.get(lock)
        assert info, f"{lock} is not held"
        assert info.token, f"nobody holds {lock}"
        assert lock in {each.name for each in locks.active()}
        locks.queue(lock)
        locks.history(lock)
        done += 1
    return done


class User:
    def __init__(self, client: Client, name: str, options: dict[str, Any]) -> None:
        self.client = client
        self.name = name
        self.options = options
        self.is_async = "async" in client.who
        self.times = 0
        """Number of successful acquisitions."""

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        run(what, self.is_async)

    @property
    def held(self) -> Any:
        """The lock that the user holds."""
        return self.client.held[self.name]

    async def do(self, thing: Any, what: str, *args: Any, **how: Any) -> Any:
        return await do(thing, what, *args, is_async=self.is_async, **how)

    async def sleep(self, shortest: float, longest: float) -> None:
        await pause(self.client.random.uniform(shortest, longest), self.is_async)

    async def acquire(self, longest: float | None = None) -> bool:
        acquisition = Acquisition(self.client, self.name, self.options)
        with self._freed_on_error(), acquisition:
            succeeded = await self._acquire(acquisition.lock_object, longest)
            self.times += succeeded
            return acquisition.log_result(succeeded)
        return False

    async def _acquire(self, lock: Any, longest: float | None) -> bool:
        if longest is None or not (self.is_async and self.client.random.random() < 0.5):
            return bool(await self.do(lock, "acquire", blocking_timeout=longest))
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):  # cancels the acquisition
                return bool(await lock.aacquire())
        return False

    async def release(self) -> None:
        with self._freed_on_error(), releasing(self.client, self.name) as held:
            await self.do(held, "release")

    async def seconds_left(self) -> float:
        info = await self.do(locks, "get", self.name)
        return info.ttl or 0 if info else 0

    @contextmanager
    def _freed_on_error(self) -> Iterator[None]:
        """Log on an error that the lock is free for the next waiter."""
        try:
            yield
        except Exception:
            self.log("free")

    def log(self, what: str, **facts: Any) -> None:
        self.client.log.write(what, lock=self.name, **facts)


Address = tuple[str, int]

TIMEOUTS = {"socket_timeout": 1.5, "socket_connect_timeout": 0.5}
"""In seconds. Without them, a client waits indefinitely for a server that does not respond."""


def by_sentinel(
    client: Client,
    name: str,
    sentinels: Sequence[Address],
    through: str = CORE,
    ways: Sequence[tuple[Address, Address]] = (),
) -> None:
    """Read the master's address from Sentinels. `through` is the backend. `ways` maps addresses
    from the Sentinels to the addresses by which this client reaches these servers."""
    from redis.sentinel import Sentinel

    reached = {tuple(address): tuple(way) for address, way in ways}
    addresses = [tuple(each) for each in sentinels]

    class WithWays(Sentinel):
        def discover_master(self, service_name: str) -> Any:
            address = super().discover_master(service_name)
            return reached.get(address, address)

    of_core = TIMEOUTS | {
        "pool_class": "redis.sentinel.SentinelConnectionPool",
        "service_name": name,
        "sentinel_manager": (WithWays if ways else Sentinel)(addresses, **TIMEOUTS),
    }
    of_django_redis = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": addresses,
        "SENTINEL_KWARGS": TIMEOUTS,
        "CONNECTION_POOL_KWARGS": TIMEOUTS,
    }
    options = of_core if through == CORE else of_django_redis
    entry = {"BACKEND": through, "KEY_PREFIX": PREFIX, "LOCATION": f"redis://{name}/0"}
    use_caches({"default": entry | {"OPTIONS": options}})


def by_cluster(client: Client, nodes: Sequence[Address]) -> None:
    """Use a Cluster, with a client that ``REDISLOCK_CLIENT`` makes."""
    use_caches(of_one("redis://"))  # for the key prefix
    use_cluster(nodes)


def use_cluster(nodes: Sequence[Address]) -> None:
    """Store the locks of this process on the Cluster from now on."""
    override_settings(**places.cluster_client([*nodes], **TIMEOUTS)).enable()
