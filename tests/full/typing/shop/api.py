"""Each kind of public call on locks, with the expected types."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Literal, assert_type

import redis
import redis.asyncio
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry
from redis import exceptions

from django_redislock import (
    AsyncLock,
    BaseLock,
    Holder,
    Lock,
    LockError,
    LockInfo,
    LockLost,
    LockManager,
    LockNotAcquired,
    LockNotOwnedError,
    locks,
    metrics,
)
from django_redislock.health import Health
from django_redislock.leader import AsyncTerm, Term
from django_redislock.lock_types import MultiLock, Mutex, Quorum, ReadLock, Semaphore, WriteLock
from django_redislock.management import IsolatedCommand
from django_redislock.snapshots import Event, Page


def warn(lock: BaseLock) -> None:
    print(lock.name)


def kinds() -> tuple[BaseLock, ...]:
    mutex = locks.lock(
        "invoice:42",
        timeout=30,
        blocking_timeout=timedelta(seconds=5),
        reentrant=True,
        release_on_commit="default",
        metadata={"by": "nobody"},
        on_lost=warn,
    )
    assert_type(mutex, Mutex)
    readers = locks.read_lock("prices", on_lost="abort")
    assert_type(readers, ReadLock)
    writer = locks.write_lock("prices", timeout=None)
    assert_type(writer, WriteLock)
    semaphore = locks.using("other").semaphore("printers", 3, weight=2, blocking=False)
    assert_type(semaphore, Semaphore)
    many = locks.lock_many(["a", "b"], timeout=1)
    assert_type(many, MultiLock)
    assert_type(many.fence_tokens, Mapping[str, int | None])
    quorum = locks.quorum("payout", using=("one", "two", "three"))
    assert_type(quorum, Quorum)
    return mutex, readers, writer, semaphore, many, quorum


def leaders() -> None:
    for term in locks.leader("poller", timeout=15, blocking_timeout=None, on_lost=warn):
        assert_type(term, Term)
        assert_type(term.fence_token, int | None)
        assert_type(term.wait(timedelta(seconds=5)), bool)
        by_hand(term)
    locks.leader("poller", max_hold=3600, min_replicas=1, metadata={"by": "nobody"}).close()


async def leaders_async() -> None:
    async for term in locks.aleader("poller", timeout=15):
        assert_type(term, AsyncTerm)
        assert_type(await term.wait(5), bool)
    await locks.aleader("poller").aclose()


class Rebuild(IsolatedCommand):
    lock_name = "rebuild:{site}"
    lock_timeout = timedelta(minutes=1)
    lock_wait = 5
    conflict_exit_code = 1

    def handle(self, *args: object, **options: object) -> None:
        assert_type(self.lock, Mutex)


def by_hand(lock: BaseLock) -> None:
    assert_type(lock.acquire(blocking=True, blocking_timeout=2.5, token="mine"), bool)
    assert_type(lock.extend(timedelta(minutes=1), replace_ttl=True), Literal[True])
    assert_type(lock.token, str | None)
    assert_type(lock.fence_token, int | None)
    assert_type(lock.lost, bool)
    lock.release()


async def by_hand_async(lock: BaseLock) -> None:
    assert_type(await lock.aacquire(blocking=False), bool)
    assert_type(await lock.areacquire(), Literal[True])
    await lock.arelease()


def on_a_client(client: redis.Redis, cluster: redis.RedisCluster) -> None:
    by_hand(Lock(redis=client, name="invoice:42", timeout=30, reentrant=True, metadata=None))
    with Lock(cluster, "invoice:42") as held:
        assert_type(held, Lock)


async def on_an_async_client(client: redis.asyncio.Redis) -> None:
    async with AsyncLock(client, "invoice:42", timeout=30) as held:
        assert_type(held, AsyncLock)
        assert_type(await held.acquire(blocking_timeout=1), bool)
        await held.release()


# Checkers must not assume that the block suppresses errors and then returns nothing.


def in_a_block() -> int:
    with locks.atomic("invoice:42", using_db="default", timeout=3) as lock:
        assert_type(lock, Mutex)
        return 1


async def in_an_async_block() -> int:
    async with locks.semaphore("printers", 3) as lock:
        assert_type(lock, Semaphore)
        return 1


@locks.lock("rebuild:{site_id}")
def rebuild(site_id: int, *, full: bool = False) -> str:
    return f"{site_id} {full}"


@locks.read_lock("site:{site_id}")
async def read(site_id: int) -> bytes:
    return bytes(site_id)


@locks.atomic("invoice:{number}")
def pay(number: int) -> datetime | None:
    return None


class Site:
    pk = 1

    @locks.lock("site:{self.pk}")
    def publish(self, at: datetime | None = None) -> list[int]:
        return [self.pk]


async def calls() -> None:
    assert_type(rebuild(1, full=True), str)
    assert_type(await read(1), bytes)
    assert_type(pay(number=1), datetime | None)
    assert_type(Site().publish(at=None), list[int])


def inspect(info: LockInfo) -> None:
    assert_type(locks.everywhere(), tuple[LockManager, ...])
    assert_type(locks.get("invoice:42"), LockInfo | None)
    assert_type(locks.active("invoice:*", kind="mutex"), Iterator[LockInfo])
    assert_type(locks.get_many(["a", "b"]), dict[str, LockInfo])
    assert_type(locks.page(start=0, stop=10), Page)
    assert_type(locks.history("a", limit=3), tuple[Event, ...])
    assert_type(locks.force_release("a", token=None), int)
    assert_type(locks.health(), Health)
    assert_type(info.holder, Holder | None)
    assert_type(info.acquired_at, datetime | None)


async def inspect_async() -> None:
    assert_type(await locks.aget("a"), LockInfo | None)
    async for info in locks.aactive("a*"):
        assert_type(info, LockInfo)
    assert_type(await locks.ahistory(), tuple[Event, ...])
    assert_type(await locks.aping(), float)


def values(shop: "Shop") -> None:
    assert_type(
        locks.get_or_set("rates", lambda: [1.5], 60, stale=timedelta(minutes=1)), list[float]
    )
    assert_type(locks.get_or_set("rate", 5, None, cache="other", version=2), int)
    assert_type(rate(currency="EUR"), float)
    rate.invalidate("EUR")
    assert_type(shop.best(limit=5), list[str])
    shop.best.invalidate(5)


async def values_async() -> None:
    assert_type(await locks.aget_or_set("rate", arate, 60, lease=5), float)
    assert_type(await locks.aget_or_set("rate", lambda: 5, 60, blocking_timeout=2), int)
    await arate.ainvalidate()


@locks.cached("rate:{currency}", timeout=60, stale=30)
def rate(currency: str) -> float:
    return 1.5


def rate_key() -> str:
    return "rate"


@locks.cached(rate_key, None)
async def arate() -> float:
    return 1.5


class Shop:
    @locks.cached("best:{self}:{limit}", timeout=60)
    def best(self, limit: int) -> list[str]:
        return ["book"] * limit


def busy(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(status=202)


@locks.guard("pay:{pk}", status=423, retry_after=2, on_busy=busy, timeout=10, at_least_for=1)
def pay_view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


@locks.guard("pay:{pk}", blocking_timeout=2)
async def apay_view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


async def views(request: HttpRequest) -> None:
    assert_type(pay_view(request, 5), HttpResponse)
    assert_type(await apay_view(request, pk=5), HttpResponse)


def export_metrics(registry: CollectorRegistry) -> None:
    metrics.install(
        registry=registry, using=["default"], labels={"area": lambda name: name.partition(":")[0]}
    )
    registry.register(metrics.Servers())


def errors_are_those_of_redis_py() -> str:
    try:
        in_a_block()
    except LockNotAcquired as error:
        assert_type(error.holder, Holder | None)
        return ""
    except LockLost as error:
        found: LockNotOwnedError = error
        return str(found)
    except LockError as error:
        theirs: exceptions.LockError = error
        return str(theirs)
    except exceptions.LockNotOwnedError:
        return ""
    return "held"
