"""What a checker has to tell: each line of these is wrong, and both tell of it.

mypy takes ``type: ignore`` for what is to be wrong, pyright takes ``pyright: ignore``; to either one
that has nothing to ignore is an error.
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
    locks.lock("a", timeout="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.lock("a", on_lost="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.semaphore("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock_many(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.quorum("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.using(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def used() -> None:
    lock = locks.lock("a")
    lock.acquire(timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lock.fence_token + 1  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand, reportUnusedExpression]
    lock.fence_tokens  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    current_lock().lost  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


async def used_async() -> None:
    await locks.lock("a").acquire()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    async with locks.atomic("a"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    locks.lock("a").aacquire()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


def called() -> None:
    api.rebuild("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    api.rebuild(1, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    api.Site().publish("now")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tasks.plain()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tasks.sync.delay("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tasks.export.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def decorated() -> None:
    single_instance(unique_on=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(mode="until_exectued")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(on_conflict="ignore")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(["account_id"])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def looked_at(info: LockInfo, error: AlreadyRunning) -> None:
    info.nmae  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    info.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    info.holder.pid  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    error.expires_in / 2  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand, reportUnusedExpression]


def guarded(account: Account) -> None:
    fenced(account, "token")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    fenced(Account.objects.all(), 1).save()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    fenced(account, None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
