"""A busy shop: its current locks, and its history of the last hour.

The locks are real. Only their holders are invented, and their times are moved in Redis.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch
from uuid import NAMESPACE_DNS, uuid5

import redis

from django_redislock import LockError, locks
from django_redislock.identity import SharedOwner, payload_text
from django_redislock.lock_types import acquisition
from tests.lock_tools import start, waiting
from tests.pages import acquired_before, arrived_before, make_past, postpone

SHOWN = "stock:teapot"
"""The lock whose page is shown."""

Holder = dict[str, Any]


def worker(number: int, task: str) -> Holder:
    """Return the holder information of a Celery task."""
    task_id = str(uuid5(NAMESPACE_DNS, f"{number} {task}"))
    return _process(f"worker-{number}", 310 + number, f"shop.tasks.{task}", task_id)


def web(number: int) -> Holder:
    """Return the holder information of a web process."""
    return _process(f"web-{number}", 80 + number, None, None)


def _process(host: str, pid: int, task_name: str | None, task_id: str | None) -> Holder:
    who = {"host": host, "pid": pid, "process": host, "thread": "MainThread"}
    return who | {"task_name": task_name, "task_id": task_id}


class Shop:
    def __init__(self, server: redis.Redis) -> None:
        self._server = server
        self._holder: Holder = {}
        self._ends: list[Callable[[], object]] = []

    def info(self, *args: Any, **options: Any) -> str:
        """Return the holder payload of an invented holder."""
        return json.dumps(json.loads(payload_text(*args, **options)) | self._holder)

    def hold(self, who: Holder, ago: float, name: str, *more, make=locks.lock, **options) -> None:
        """Hold a lock. Its earlier holders seem to be older by `ago` seconds as well."""
        self._holder = who
        lock = make(name, *more, **{"timeout": 60} | options)
        assert lock.acquire(blocking=False)
        acquired_before(self._server, name, seconds=ago)
        self._ends.append(lock.release)

    def wait(self, who: Holder, ago: float, name: str, **options: Any) -> None:
        """Wait for a lock. Its earlier waiters seem to wait longer by `ago` seconds as well."""
        self._holder = who
        lock, queued = locks.lock(name, timeout=60, **options), len(locks.queue(name))
        lock._shared_owner = SharedOwner()  # another thread releases it
        acquired = start(lock.acquire)
        waiting(locks, name, queued + 1)
        arrived_before(self._server, name, seconds=ago)
        self._ends.append(lambda: acquired.result(60) and lock.release())

    def close(self) -> None:
        for end in self._ends:
            with suppress(LockError):  # a forced release
                end()
        self._ends.clear()

    def repeat(self, name: str, times: int, seconds: float, first: float, pause: float) -> None:
        """Repeat the last hold of a lock in the past, instead of now."""
        make_past(
            self._server, name, times=times, seconds=seconds, step=lambda n: first + pause * n
        )
        [stream] = self._server.scan_iter("*:history:ended")
        for at, event in self._server.xrange(stream):
            if event["name"] == name and not event["token"].startswith("past"):
                self._server.xdel(stream, at)

    def fill_past(self) -> None:
        for number in range(12):
            self.hold(worker(1 + number % 2, "send_invoice"), 0, f"invoice:{1019 + number}")
        self.hold(worker(3, "build_feed"), 0, "feed:google")
        self.hold(web(1), 0, SHOWN)
        self.wait(worker(2, "reserve_stock"), 40, SHOWN)
        self.close()
        for number in range(12):
            self.repeat(f"invoice:{1019 + number}", 1, 2 + number % 4, 300 + 170 * number, 0)
        self.repeat("feed:google", 10, 45, 655, 300)
        self.repeat(SHOWN, 4, 38, 602, 810)
        self.hold(worker(4, "reindex"), 620, "search:reindex")
        locks.force_release("search:reindex", by="ada", reason="hung since the deploy")
        self.close()

    def fill_present(self) -> None:
        orders = {"orders": 18204, "started by": "beat", "format": "parquet"}
        self.hold(worker(2, "export_orders"), 720, "export:orders", metadata=orders)
        for number, ago in ((1, 70), (2, 95), (4, 95)):
            self.hold(web(number), ago, "prices", make=locks.read_lock)
        for number, ago in ((1, 3), (2, 19), (1, 12)):
            self.hold(web(number), ago, "payment-gateway", 3, make=locks.semaphore)
        self.hold(worker(3, "build_feed"), 460, "feed:google", timeout=90, metadata={"site": "nl"})
        postpone(self._server, "feed:google", seconds=58)
        order = {"order": 7731, "sku": "teapot-blue", "quantity": 2}
        self.hold(worker(1, "reserve_stock"), 74, SHOWN, metadata=order)
        assert not locks.lock(SHOWN).acquire(blocking=False)
        for who, ago in ((worker(4, "reserve_stock"), 9), (worker(2, "reserve_stock"), 9)):
            self.wait(who, ago, SHOWN, metadata={"order": 7733})
        self.wait(web(2), 8, SHOWN)
        self.hold(worker(2, "sum_up_sales"), 18, "report:sales", auto_renewal=False)
        self.hold(worker(1, "send_invoice"), 3, "invoice:1042")


@contextmanager
def busy_shop(server: redis.Redis) -> Iterator[None]:
    server.flushdb()
    shop = Shop(server)
    with patch.object(acquisition, "payload_text", shop.info):
        try:
            shop.fill_past()
            shop.fill_present()
            yield
        finally:
            shop.close()
