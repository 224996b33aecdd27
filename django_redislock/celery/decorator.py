"""The decorator `single_instance`."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from celery import Task
from celery.local import Proxy
from redis.exceptions import RedisError

from django_redislock.exceptions import LockNotOwnedError
from django_redislock.manager import locks
from django_redislock.names import shown

from .abort import Abort
from .call import Call, held, running_task, runs_under
from .conflict import Conflict, settle
from .key import key_maker
from .options import Options
from .worker import MARK, Single

if TYPE_CHECKING:
    from django_redislock.manager import LockManager
    from django_redislock.primitives import BaseLock, Mutex, Semaphore
    from django_redislock.primitives import Options as LockOptions
    from django_redislock.values import Seconds

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_redislock")

LOOKS = 3
"""How often a holder may be gone before it could be told who it was."""


@overload
def single_instance(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def single_instance(
    *,
    unique_on: Collection[str] | None = None,
    key: str | Callable[..., str] | None = None,
    mode: str = "while_executing",
    on_conflict: str = "skip",
    timeout: Seconds | None = None,
    blocking_timeout: Seconds | None = None,
    countdown: Seconds | None = None,
    max_retries: int | None = None,
    limit: int | None = None,
    at_least_for: Seconds = 0,
    on_lost: Callable[..., Any] | Literal["abort"] | None = None,
    using: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def single_instance(
    function: Callable[..., Any] | None = None,
    /,
    *,
    unique_on: Collection[str] | None = None,
    key: str | Callable[..., str] | None = None,
    mode: str = "while_executing",
    on_conflict: str = "skip",
    timeout: Seconds | None = None,
    blocking_timeout: Seconds | None = None,
    countdown: Seconds | None = None,
    max_retries: int | None = None,
    limit: int | None = None,
    at_least_for: Seconds = 0,
    on_lost: Callable[..., Any] | Literal["abort"] | None = None,
    using: str | None = None,
) -> Any:
    """Let a task, or any function, run once at a time.

    It goes below the task decorator::

        @shared_task(bind=True)
        @single_instance(unique_on=["account_id"], on_conflict="retry")
        def sync(self, account_id, full=False): ...

    While the function runs it holds a lock, which is renewed as long as it
    takes. The lock is named after the task (a plain function: its module and
    qualified name), so there is one instance per task.

    `unique_on` makes that one per task and arguments: a list of argument
    names, or ``"*"`` for all. `key` names the lock instead: a template such as
    ``"report:{account_id}"``, or a callable of the call's arguments.

    `on_conflict` says what a call does that meets a running instance:

    - ``"skip"``: completes with None, leaves a warning in the log and sends
      the signal `task_skipped`.
    - ``"raise"``: raises `AlreadyRunning`.
    - ``"retry"``: the worker runs it again after `countdown` seconds (None:
      about 1, doubling up to 60), at most `max_retries` times (None: no
      limit), then raises `AlreadyRunning`. The task's own retries are not
      touched. A `countdown` near 0 makes the worker spin, and may leave the
      state RETRY on a task that ended: Celery notes it after it has sent.
      Where there is no queue to go back to (a direct call, a plain function,
      `apply()`, ``task_always_eager``) it raises at once.
    - ``"wait"``: waits at most `blocking_timeout` seconds (None: for ever) for
      its turn, then raises `AlreadyRunning`.

    Two cases are not left to `on_conflict`. A task that meets an earlier
    execution of its own message (one that just retried itself, or was
    delivered twice) is run again later, so that its work is not lost. A call
    from inside the running instance is never sent again nor made to wait:
    both could not end.

    With `limit` up to so many instances run at a time. `at_least_for` is for how
    many seconds an instance keeps its place, counted from its begin, however soon
    it ends: a throttle, and for a job that several machines begin at the same time
    by their own clocks.

    `timeout` is the lease in seconds (None: ``REDISLOCK_TIMEOUT``), which is
    how long the lock outlives a worker that died. `on_lost` is called if the
    lock goes away while the function runs; ``"abort"`` raises `LockLost` in it,
    where it runs in the main thread of its process, as in the prefork pool
    (elsewhere it has to look at ``current_lock().lost``). `using` is the alias of ``CACHES``
    whose server keeps the lock. Seconds are int, float or timedelta.

    Raises `TypeError`, `ValueError` or `ImproperlyConfigured` at import for
    options that can't work, and at the call for arguments that can't be part
    of a name; redis-py's `ConnectionError` if Redis is away when the call
    begins. Trouble with the lock after that is logged: the function's result,
    or its exception, stands.
    """
    options = Options(
        unique_on=unique_on,
        key=key,
        mode=mode,
        on_conflict=on_conflict,
        timeout=timeout,
        blocking_timeout=blocking_timeout,
        countdown=countdown,
        max_retries=max_retries,
        limit=limit,
        at_least_for=at_least_for,
        on_lost=on_lost,
        using=using,
    )
    if function is None:
        return functools.partial(_decorate, options)
    return _decorate(options, function)


def _decorate(options: Options, function: Callable[P, R]) -> Callable[P, R]:
    _check_function(function)
    signature = _signature_of(function)
    name_of = key_maker(options, signature)

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        call = Call(alone, running_task(alone), args, kwargs)
        result: R = _run_alone(function, call, name_of(call), options)
        return result

    setattr(alone, MARK, Single(name_of, options))
    # Celery reads the signature of the outermost function alone.
    alone.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return alone


def _run_alone(function: Callable[..., Any], call: Call, name: str, options: Options) -> Any:
    manager = locks.using(options.using)
    conflict = Conflict(call, name, options, manager, runs_under(manager.alias, name))
    abort = Abort() if options.on_lost == "abort" else None
    lock = _lock(manager, name, options, abort or options.on_lost)
    # Inside the try, for a soft time limit may strike between any two lines.
    try:
        if not _acquire(lock, conflict):
            return settle(conflict)
        with held(manager.alias, lock), abort or nullcontext():
            return function(*call.args, **call.kwargs)
    finally:
        if lock.token is not None:
            _release(lock, call)


def _acquire(lock: BaseLock, conflict: Conflict) -> bool:
    blocking = conflict.options.on_conflict == "wait" and not conflict.inside
    for _ in range(LOOKS):
        if lock.acquire(blocking=blocking):
            return True
        if conflict.look():
            return False
        blocking = False
    return False


def _lock(manager: LockManager, name: str, options: Options, on_lost: Any) -> Mutex | Semaphore:
    more: LockOptions = {
        "timeout": options.timeout,
        "blocking_timeout": options.blocking_timeout,
        "at_least_for": options.at_least_for,
        "on_lost": on_lost,
    }
    if options.limit is None:
        return manager.lock(name, **more)
    return manager.semaphore(name, options.limit, **more)


def _release(lock: BaseLock, call: Call) -> None:
    """Release, and let no trouble with it hide what the function did."""
    try:
        lock.release()
    except LockNotOwnedError:
        logger.error(
            "%s lost lock %r while it ran: another instance may have run beside it",
            *(call, lock.name),
        )
    except RedisError as error:
        logger.warning(
            "%s could not release lock %r, which stays until its lease is over: %s",
            *(call, lock.name, error),
        )


def _check_function(function: Any) -> None:
    # By type(): to look into a task's proxy would be to create the task.
    if issubclass(type(function), (Task, Proxy)):
        raise TypeError(
            "single_instance goes below the task decorator, so that it sees the function:"
            " put @shared_task or @app.task above it"
        )
    named = callable(function) and hasattr(function, "__qualname__")
    if not named or isinstance(function, (type, staticmethod, classmethod)):
        raise TypeError(
            f"single_instance decorates a function, not {shown(function)}"
            f" ({type(function).__name__}); its options are given by name"
        )
    _check_runs_in_the_call(function)


def _check_runs_in_the_call(function: Callable[..., Any]) -> None:
    late = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    if any(is_late(function) for is_late in late):
        raise TypeError(
            f"{function.__module__}.{function.__qualname__} is a coroutine or generator function:"
            " its body runs after the call, when the lock would be released"
        )


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # Names that exist for type checkers alone need not exist here.
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
