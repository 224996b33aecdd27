"""A busy shop: its current locks, and its history of the last hour.

The locks are real. They are acquired and released while the clock of the server is moved. Only
their holders are invented, so that the pictures are the same on each machine.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any
from unittest.mock import patch
from uuid import NAMESPACE_DNS, uuid5

from django_redislock import LockError, locks
from django_redislock.engine import store
from django_redislock.identity import SharedOwner, payload_text
from django_redislock.lock_types import acquisition
from tests.lock_tools import start
from tests.tools import wait_until

from .timed_server import TimedServer

NOW = datetime(2026, 3, 9, 10, 24, 30, tzinfo=UTC)

SHOWN = "stock:teapot"
"""The lock whose page is shown."""

RENEWED_EVERY = 20
"""In seconds. Renewed locks have leases of a minute."""


def worker(number: int, task: str) -> dict[str, Any]:
    """Return the holder information of a Celery task."""
    return {"host": f"worker-{number}", "pid": 310 + number, "task_name": f"shop.tasks.{task}"}


def web(number: int) -> dict[str, Any]:
    """Return the holder information of a web process."""
    return {"host": f"web-{number}", "pid": 80 + number, "task_name": None}


HOLDERS: dict[SharedOwner, dict[str, Any]] = {}
"""The invented holders."""


def invented_info(*args: Any, owner: Any, **options: Any) -> str:
    """Return the holder payload of an invented holder."""
    return json.dumps(json.loads(payload_text(*args, owner=owner, **options)) | HOLDERS[owner])


class Visit:
    """The hold of a lock by an invented process."""

    def __init__(self, lock: Any, holder: dict[str, Any]) -> None:
        self.renews = True
        self._lock = lock
        task_id = holder["task_name"] and str(uuid5(NAMESPACE_DNS, f"{holder} {lock.name}"))
        lock.on_conflict = "skip" if task_id else ""
        # One thread acquires the lock, and another renews and releases it.
        lock._shared_owner = owner = SharedOwner()
        HOLDERS[owner] = holder | {"thread": "MainThread", "task_id": task_id}

    def acquire(self) -> None:
        """Acquire the lock, and wait until it is acquired, refused, or queued for."""
        queued = len(locks.queue(self._lock.name))
        self._acquired = start(self._lock.acquire)
        wait_until(lambda: self._acquired.done() or len(locks.queue(self._lock.name)) > queued)

    def renew(self) -> None:
        if self.renews:
            with suppress(LockError):  # the visit is queued, or its lock is lost
                self._lock.reacquire()

    def end(self) -> None:
        if self._acquired.result(60):
            with suppress(LockError):
                self._lock.release()
        wait_until(self._is_handed_over)

    def _is_handed_over(self) -> bool:
        # A waiter that is granted the lock has a short lease until it confirms the grant.
        info = locks.get(self._lock.name)
        return not info or all(each.ttl > store.GRANT_TTL_SECONDS for each in info.holders)


class Shop:
    """The present holders and waiters, and the planned actions."""

    def __init__(self, server: TimedServer) -> None:
        self._server = server
        self._present: list[Visit] = []
        self._plan: list[tuple[float, Callable[[], object]]] = []

    def plan(self, before: float, act: Callable[[], object]) -> None:
        """Plan an action at `before` seconds before `NOW`, or up to a second later."""
        # A whole number of seconds between two actions would sometimes be shown as one less.
        self._plan.append((before - len(self._plan) * 0.618 % 1, act))

    def visit(
        self,
        came: float,
        left: float | None,
        holder: dict[str, Any],
        name: str,
        *more: Any,
        make: Callable[..., Any] = locks.lock,
        **options: Any,
    ) -> Visit:
        """Plan a visit from `came` to `left` seconds before `NOW`, or until the end."""
        # Renewed by the plan alone: the clock of this process does not stop with the server's.
        lock = make(name, *more, **{"timeout": 60} | options | {"auto_renewal": False})
        visit = Visit(lock, holder | {"renewed": options.get("auto_renewal", True)})
        self.plan(came, lambda: (self._present.append(visit), visit.acquire()))
        if left is not None:
            self.plan(left, lambda: (self._present.remove(visit), visit.end()))
        return visit

    def open(self) -> None:
        """Execute the planned actions in order."""
        for before, act in sorted(self._plan, key=itemgetter(0), reverse=True):
            self._server.stop_at(NOW - timedelta(seconds=before))
            act()
        self._server.go_from(NOW)

    def close(self) -> None:
        for visit in self._present:
            visit.end()

    def renew(self) -> None:
        for visit in self._present:
            visit.renew()


def plan_past(shop: Shop) -> None:
    """Plan the visits of the history."""
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
    force = partial(locks.force_release, by="ada", reason="hung since the deploy")
    shop.plan(820, lambda: force("search:reindex"))


def plan_present(shop: Shop) -> None:
    """Plan the present holders and waiters."""
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


@contextmanager
def busy_shop(server: TimedServer) -> Iterator[None]:
    """Yield the shop at `NOW`. The clock then runs, so that waiters can time out."""
    shop = Shop(server)
    plan_past(shop)
    plan_present(shop)
    for before in range(3600, 0, -RENEWED_EVERY):
        shop.plan(before - 4, shop.renew)
    # A long TTL, so that no waiter counts as dead when the clock jumps.
    with (
        patch.object(store, "WAITER_TTL_MS", 3_600_000),
        patch.object(acquisition, "payload_text", invented_info),
    ):
        shop.open()
        try:
            yield
        finally:
            shop.close()
