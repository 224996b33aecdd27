"""What clients do beside `client.loop`: functions that they are asked for by their paths, how they
reach a deployment that is more than one server (asked for before they use any lock), and a user
that is sync or async. What tells of locks is for clients of any release.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from django.test import override_settings
from redis.exceptions import RedisError

import django_redislock
from django_redislock import locks
from tests.full.topologies import places

from .client import Client, Want, acquire, do, letting_go, pause, release, run, use_caches, write
from .crew import CORE, PREFIX
from .crew import caches as of_one

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


class User:
    def __init__(self, client: Client, name: str, options: dict[str, Any]) -> None:
        self.client = client
        self.name = name
        self.options = options
        self.is_async = "async" in client.who
        self.times = 0
        """How often it held the lock."""

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        run(what, self.is_async)

    @property
    def held(self) -> Any:
        """The lock that it holds."""
        return self.client.held[self.name]

    async def do(self, thing: Any, what: str, *args: Any, **how: Any) -> Any:
        return await do(thing, what, *args, is_async=self.is_async, **how)

    async def sleep(self, shortest: float, longest: float) -> None:
        await pause(self.client.random.uniform(shortest, longest), self.is_async)

    async def acquire(self, longest: float | None = None) -> bool:
        with self._broken_off(), Want(self.client, self.name, self.options) as want:
            acquired = want.ends(await self._acquire(want.lock_object, longest))
            self.times += acquired
            return acquired
        return False

    async def _acquire(self, lock: Any, longest: float | None) -> bool:
        if longest is None or not (self.is_async and self.client.random.random() < 0.5):
            return bool(await self.do(lock, "acquire", blocking_timeout=longest))
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):  # which cancels it
                return bool(await lock.aacquire())
        return False

    async def release(self) -> None:
        with self._broken_off(), letting_go(self.client, self.name) as held:
            await self.do(held, "release")

    async def seconds_left(self) -> float:
        info = await self.do(locks, "get", self.name)
        return info.ttl or 0 if info else 0

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """What goes wrong leaves nothing behind: from then on the next may hold it."""
        try:
            yield
        except Exception:
            self.log("free")

    def log(self, what: str, **facts: Any) -> None:
        self.client.log.write(what, lock=self.name, **facts)


INFO = "name", "kind", "capacity", "state", "waiters"
HOLDING = "token", "fence_token", "weight", "timeout", "waited", "acquired_at"
WAITING = "since", "weight", "timeout"
PAST = "name", "kind", "outcome", "at", "acquired_at", "held", "fence_token", "weight"
ABOUT = "holder", "metadata"  # what all releases tell, but for what changes while one looks


def made_of(client: Client) -> str:
    """Where its package is."""
    return str(django_redislock.__file__)


def tell(client: Client, lock: str) -> dict[str, Any]:
    """Who holds it and who waits, and who held it before."""
    info = locks.get(lock)
    return {
        "listed": [each.name for each in locks.active(lock)],
        "info": info and _told(info, *INFO),
        "holders": [_told(each, *HOLDING, *ABOUT) for each in info.holders] if info else [],
        "queue": [_told(each, *WAITING, *ABOUT) for each in locks.queue(lock)],
        "past": [_told(each, *PAST, *ABOUT) for each in locks.history(lock)],
    }


def force(client: Client, lock: str, token: str) -> int:
    return locks.force_release(lock, token)


def _told(facts: object, *names: str) -> dict[str, Any]:
    return {name: _plain(getattr(facts, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value):  # the holder, of whom the previous release does not know the process
        return {name: each for name, each in asdict(value).items() if name != "process"}
    return value


Address = tuple[str, int]

IN_TIME = {"socket_timeout": 1.5, "socket_connect_timeout": 0.5}
"""Seconds. Without them, a client waits for ever for a server that stands still."""


def by_sentinel(
    client: Client,
    name: str,
    sentinels: Sequence[Address],
    through: str = CORE,
    ways: Sequence[tuple[Address, Address]] = (),
) -> None:
    """Have the master's address from Sentinels. `through` is the backend; `ways` are the
    addresses by which this client alone reaches those that the Sentinels tell."""
    from redis.sentinel import Sentinel

    reached = {tuple(told): tuple(way) for told, way in ways}
    addresses = [tuple(each) for each in sentinels]

    class WithWays(Sentinel):
        def discover_master(self, service_name: str) -> Any:
            told = super().discover_master(service_name)
            return reached.get(told, told)

    of_core = IN_TIME | {
        "pool_class": "redis.sentinel.SentinelConnectionPool",
        "service_name": name,
        "sentinel_manager": (WithWays if ways else Sentinel)(addresses, **IN_TIME),
    }
    of_django_redis = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": addresses,
        "SENTINEL_KWARGS": IN_TIME,
        "CONNECTION_POOL_KWARGS": IN_TIME,
    }
    options = of_core if through == CORE else of_django_redis
    entry = {"BACKEND": through, "KEY_PREFIX": PREFIX, "LOCATION": f"redis://{name}/0"}
    use_caches({"default": entry | {"OPTIONS": options}})


def by_cluster(client: Client, nodes: Sequence[Address]) -> None:
    """Have a client of a Cluster, as ``REDISLOCK_CLIENT`` makes it."""
    use_caches(of_one("redis://"))  # whose prefix it has
    use_cluster(nodes)


def use_cluster(nodes: Sequence[Address]) -> None:
    """Have locks of this process live on that Cluster from now on."""
    override_settings(**places.cluster_client([*nodes], **IN_TIME)).enable()
