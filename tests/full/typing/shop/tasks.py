"""`single_instance` keeps the signature of a function and the type of a task."""

from datetime import timedelta
from typing import assert_type

from celery import Celery, Task, shared_task
from celery.result import AsyncResult

from django_redislock import AlreadyRunning, BaseLock, single_instance
from django_redislock.celery import current_lock

app = Celery("shop")


@shared_task
@single_instance(unique_on=["account_id"], timeout=60, on_conflict="retry", countdown=2)
def sync(account_id: int, full: bool = False) -> str:
    assert_type(current_lock(), BaseLock | None)
    return f"{account_id} {full}"


@shared_task
@single_instance
def nightly() -> int:
    return 1


@app.task(bind=True, max_retries=3)
@single_instance(
    key="report:{account_id}", on_conflict="wait", blocking_timeout=timedelta(seconds=10), limit=3
)
def report(self: "Task[..., bytes]", account_id: int) -> bytes:
    if self.request.retries:
        raise self.retry(countdown=1)
    return bytes(account_id)


@single_instance(mode="until_executed", unique_on="*", on_conflict="raise", queue_timeout=600)
@shared_task
def export(account_id: int) -> list[str]:
    return [str(account_id)]


def key_of(number: int, twice: bool = False) -> str:
    return f"plain:{number}"


@single_instance(key=key_of, on_lost="abort")
def plain(number: int, *, twice: bool = False) -> float:
    return number / 2


def sends() -> None:
    assert_type(sync.delay(1, full=True), AsyncResult[str])
    assert_type(sync(1), str)
    assert_type(nightly.delay(), AsyncResult[int])
    assert_type(report.name, str)
    assert_type(plain(1, twice=True), float)
    try:
        assert_type(export.delay(account_id=1), AsyncResult[list[str]])
        assert_type(export(1), list[str])
    except AlreadyRunning as error:
        assert_type(error.task_id, str | None)
        assert_type(error.expires_in, float | None)
