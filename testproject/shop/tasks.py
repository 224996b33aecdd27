import os
import socket
import time
from typing import Any

from celery import Task, shared_task

from django_redislock import LockLost, locks, single_instance

REPORT_SECONDS = 1.0


@shared_task(name="shop.report")
def report(report_id: int) -> dict[str, Any]:
    return make_report()


@shared_task(bind=True, name="shop.report_once")
@single_instance(unique_on=["report_id"], timeout=10)
def report_once(self: "Task[..., Any]", report_id: int) -> dict[str, Any]:
    return make_report()


def make_report() -> dict[str, Any]:
    started = time.time()
    time.sleep(REPORT_SECONDS)
    place = f"{socket.gethostname()}:{os.getpid()}"
    return {"started": started, "ended": time.time(), "place": place}


@shared_task(name="shop.rebuild")
def rebuild(index: str, seconds: float) -> str:
    """Hold the lock of an index for `seconds`, or until an operator releases it."""
    try:
        with locks.lock(f"rebuild:{index}", timeout=3) as lock:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not lock.lost:
                time.sleep(0.05)
    except LockLost:
        return "lost"
    return "done"
