"""Each line with a comment is wrong, and both checkers have to report it.

An ignore comment that ignores nothing is an error too: ``type: ignore`` for mypy, ``pyright:
ignore`` for pyright.
"""

from django_redislock import AlreadyRunning, LockInfo, locks, single_instance
from django_redislock import lokcs  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from django_redislock.celery import current_lock
from django_redislock.fencing import fenced

from . import api, tasks
from .models import Account


def made() -> None:
    print(lokcs)  # pyright: ignore[reportUnknownArgumentType]
    locks.lock(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.lock("a", timeot=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock("a", on_lost="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.semaphore("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def used() -> None:
    lock = locks.lock("a")
    lock.acquire(timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lock.fence_token + 1  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand, reportUnusedExpression]
    current_lock().lost  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


async def used_async() -> None:
    await locks.lock("a").acquire()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    async with locks.atomic("a"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    locks.lock("a").aacquire()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


def called() -> None:
    api.rebuild("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    api.Site().publish("now")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tasks.plain()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tasks.sync.delay("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tasks.export.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def decorated() -> None:
    single_instance(mode="until_exectued")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(["account_id"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def computed() -> None:
    locks.get_or_set("rates", 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    locks.get_or_set("rates", 5, 60, ttl=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    api.rate.invalidate(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.guard("a", blocking=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def inspected(info: LockInfo, error: AlreadyRunning) -> None:
    info.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    info.holder.pid  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    error.expires_in / 2  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand, reportUnusedExpression]


def guarded(account: Account) -> None:
    fenced(account, "token")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    fenced(Account.objects.all(), 1).save()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
