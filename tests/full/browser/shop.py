"""A busy shop: its locks now, and those of the last hour.

The locks are real, and are acquired and released while the clock of the server is moved. Only the
processes that they name are invented, so that the pictures are the same on each machine.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any
from unittest.mock import patch
from uuid import NAMESPACE_DNS, uuid5

from django_redislock import LockError, connection, locks
from django_redislock.conf import conf
from django_redislock.engine import flows
from django_redislock.holder import Anybody
from django_redislock.keys import BUCKETS
from tests.lock_tools import start
from tests.tools import wait_until

from .timed_server import TimedServer

NOW = datetime(2026, 3, 9, 10, 24, 30, tzinfo=UTC)

SHOWN = "stock:teapot"
"""The lock whose own page is shown."""

RENEWED_EVERY = 20
"""Seconds; all that renew have leases of a minute."""


GOLDEN = (math.sqrt(5) - 1) / 2
"""The parts of a second after so many times of it are well apart from each other."""


@dataclass(frozen=True)
class Who:
    """A process, and the Celery task that it runs, if it does."""

    host: str
    pid: int
    task: str | None = None

    def told(self, name: str) -> dict[str, Any]:
        id_of_task = self.task and str(uuid5(NAMESPACE_DNS, f"{self.host} {self.task} {name}"))
        return {
            "host": self.host,
            "pid": self.pid,
            "thread": "MainThread",
            "task_name": self.task and f"shop.tasks.{self.task}",
            "task_id": id_of_task,
        }


def worker(number: int, task: str) -> Who:
    return Who(f"worker-{number}", 310 + number, task)


def web(number: int) -> Who:
    return Who(f"web-{number}", 80 + number)


class Visit:
    """A holder of a lock: it acquires the lock, renews it on request, and releases it.

    `make` makes the lock, as ``locks.lock`` does, from the name and the other arguments.
    """

    def __init__(
        self,
        who: Who,
        name: str,
        *more: Any,
        make: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.renews = True
        self._lock = lock = (make or locks.lock)(name, *more, **{"timeout": 60} | options)
        lock.on_conflict = "skip" if who.task else ""
        anybody, of_lock, told = Anybody(), lock._info, who.told(name)
        # The thread that acquires the lock is not the one that renews and releases it.
        lock._owner = lambda: anybody
        lock._info = lambda renewed: json.dumps(json.loads(of_lock(renewed)) | told)

    @property
    def holds(self) -> bool:
        return self._acquired.done() and bool(self._acquired.result())

    def acquire(self) -> None:
        """Return when it is the holder, waits, or did not acquire the lock."""
        queued = len(locks.queue(self.name))
        self._acquired = start(self._acquire)
        wait_until(lambda: self._acquired.done() or len(locks.queue(self.name)) > queued)

    def renew(self) -> None:
        with suppress(LockError):  # the lease expired, or was released by force
            self._lock.reacquire()

    def end(self) -> None:
        if self._acquired.result(60):
            with suppress(LockError):
                self._lock.release()

    def _acquire(self) -> bool:
        if not self._lock.acquire():
            return False
        wait_until(self._has_full_lease)
        return True

    def _has_full_lease(self) -> bool:
        # The lease of a waiter that was granted the lock is shorter until it is confirmed.
        holders = locks.get(self.name).holders
        return any(each.token == self._lock.token and each.ttl > flows.CLAIM for each in holders)


class Shop:
    """The present holders and waiters, and the clock by which they come and go."""

    def __init__(self, server: TimedServer) -> None:
        self._server = server
        self._present: list[Visit] = []
        self._plan: list[tuple[float, Callable[[], object]]] = []

    def plan(self, before: float, act: Callable[[], object]) -> None:
        """Act so many seconds before `NOW`, or up to a second later.

        The server's clock is true to a millisecond, so two acts must not be a whole number of
        seconds apart: such a time is sometimes shown as one less.
        """
        later = len(self._plan) * GOLDEN % 1
        self._plan.append((before - later, act))

    def visit(self, came: float, left: float | None, *who_and_what: Any, **options: Any) -> Visit:
        """A visit from `came` to `left` seconds before `NOW`, or to the end."""
        visit = Visit(*who_and_what, **options)
        self.plan(came, lambda: self._come(visit))
        if left is not None:
            self.plan(left, lambda: self._leave(visit))
        return visit

    def open(self) -> None:
        """Do everything that was planned, in its order."""
        for before, act in sorted(self._plan, key=itemgetter(0), reverse=True):
            self._server.stop_at(NOW - timedelta(seconds=before))
            act()
        self._server.go_from(NOW)

    def close(self) -> None:
        for visit in self._present:
            visit.end()

    def renew(self) -> None:
        for visit in self._present:
            if visit.renews and visit.holds:
                visit.renew()

    def _come(self, visit: Visit) -> None:
        self._present.append(visit)
        visit.acquire()

    def _leave(self, visit: Visit) -> None:
        self._present.remove(visit)
        waits, held = len(locks.queue(visit.name)), self._holders(visit.name)
        visit.end()
        if waits:
            wait_until(lambda: self._holders(visit.name) > held)

    def _holders(self, name: str) -> int:
        return sum(visit.holds for visit in self._present if visit.name == name)


def plan_past(shop: Shop) -> None:
    """What is over by now."""
    for number, came in enumerate(range(3500, 600, -300)):
        shop.visit(came, came - 45 - 7 * (number % 4), worker(3, "build_feed"), "feed:google")
    for number, came in enumerate(range(3400, 300, -170)):
        name = f"invoice:{1019 + number}"
        shop.visit(came, came - 2 - 3 * (number % 3), worker(1 + number % 2, "send_invoice"), name)
    for came in (3100, 2240, 1500, 640):
        shop.visit(came, came - 38, worker(1, "reserve_stock"), SHOWN, metadata={"order": 7719})
        shop.visit(came - 6, came - 62, worker(2, "reserve_stock"), SHOWN)
        shop.visit(came - 13, came - 71, web(1), SHOWN)
    for came in (2890, 2870, 1130):
        shop.visit(came, came - 9, web(2), "checkout:cart-7688", blocking=False)
        shop.visit(came - 2, came - 3, web(1), "checkout:cart-7688", blocking=False)
    for came, left in ((2600, 2300), (2590, 2589), (2470, 2469)):
        shop.visit(came, left, worker(4, "send_newsletter"), "newsletter:march", blocking=False)
    shop.visit(3350, None, worker(4, "pack_parcels"), "parcels:north").renews = False
    shop.visit(1900, 1700, worker(2, "sum_up_sales"), "report:sales", timeout=30).renews = False
    shop.visit(1400, 780, worker(4, "reindex"), "search:reindex")
    shop.plan(820, lambda: locks.force_release("search:reindex"))


def plan_present(shop: Shop) -> None:
    """Who is there, the longest first."""
    orders = {"orders": 18204, "started by": "beat", "format": "parquet"}
    shop.visit(720, None, worker(2, "export_orders"), "export:orders", metadata=orders)
    for number, came in ((1, 260), (2, 190), (4, 95)):
        shop.visit(came, None, web(number), "prices", make=locks.read_lock)
    stale = shop.visit(520, None, worker(3, "build_feed"), "feed:google", metadata={"site": "nl"})
    shop.plan(48, lambda: setattr(stale, "renews", False))
    for number, came in ((1, 34), (2, 31), (1, 12), (2, 9)):
        who = worker(number, "charge_card") if came < 20 else web(number)
        shop.visit(came, None, who, "payment-gateway", 3, make=locks.semaphore)
    order = {"order": 7731, "sku": "teapot-blue", "quantity": 2}
    shop.visit(74, None, worker(1, "reserve_stock"), SHOWN, metadata=order)
    shop.visit(26, None, worker(4, "reserve_stock"), SHOWN, metadata={"order": 7733})
    shop.visit(17, None, worker(2, "reserve_stock"), SHOWN, metadata={"order": 7736})
    shop.visit(8, None, web(1), SHOWN)
    shop.visit(60, 58, worker(1, "write_sitemap"), "sitemap", at_least_for=150)
    once = {"timeout": 30, "auto_renewal": False}
    shop.visit(28, None, worker(2, "sum_up_sales"), "report:sales", **once).renews = False
    shop.visit(3, None, worker(1, "send_invoice"), "invoice:1042")
    shop.visit(1, None, web(2), "checkout:cart-7740")


def begin_to_count(server: TimedServer) -> None:
    """Let the fencing tokens be the same in each picture, and not end with what the clock says."""
    first = int(NOW.timestamp()) * 1_000_000
    keys = connection.server(conf.cache).keys
    for bucket in range(BUCKETS):
        index, *_ = keys.inspect(bucket)
        server.client.zadd(index, {"": first + 1000 * bucket})


@contextmanager
def busy_shop(server: TimedServer) -> Iterator[Shop]:
    """The shop at `NOW`; from there the clock goes on, or those who wait would do so in vain."""
    shop = Shop(server)
    begin_to_count(server)
    plan_past(shop)
    plan_present(shop)
    for before in range(3600, 0, -RENEWED_EVERY):
        shop.plan(before - 4, shop.renew)
    # Nobody who waits dies while the clock jumps.
    with patch.object(flows, "ALIVE", 3600.0):
        shop.open()
        try:
            yield shop
        finally:
            shop.close()
