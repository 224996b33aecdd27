"""The decorator `single_instance`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, overload

from django.core.exceptions import ImproperlyConfigured

from django_redislock.functions import is_async, is_generator, signature_of
from django_redislock.names import shown

from . import ends, worker  # noqa: F401  what they connect to
from .call import Call, running_task
from .execution import Execution
from .key import key_maker
from .options import Options
from .position import is_task, when_made
from .sending import take_place_when_sent
from .single import MARK, Single, single_of

if TYPE_CHECKING:
    from celery import Task

    from django_redislock.values import Seconds

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

ModeName = Literal[
    "while_executing", "until_executing", "until_executed", "until_and_while_executing"
]
OnConflict = Literal["skip", "raise", "retry", "wait", "replace"]


@overload
def single_instance(function: F, /) -> F: ...


@overload
def single_instance(
    *,
    unique_on: Collection[str] | None = None,
    key: str | Callable[..., str] | None = None,
    mode: ModeName = "while_executing",
    on_conflict: OnConflict = "skip",
    timeout: Seconds | None = None,
    blocking_timeout: Seconds | None = None,
    countdown: Seconds | None = None,
    max_retries: int | None = None,
    limit: int | None = None,
    at_least_for: Seconds = 0,
    queue_timeout: Seconds | None = None,
    hold_on_retry: bool | None = None,
    on_lost: Callable[..., Any] | Literal["abort"] | None = None,
    using: str | None = None,
) -> Callable[[F], F]: ...


def single_instance(
    function: Callable[..., Any] | None = None,
    /,
    *,
    unique_on: Collection[str] | None = None,
    key: str | Callable[..., str] | None = None,
    mode: ModeName = "while_executing",
    on_conflict: OnConflict = "skip",
    timeout: Seconds | None = None,
    blocking_timeout: Seconds | None = None,
    countdown: Seconds | None = None,
    max_retries: int | None = None,
    limit: int | None = None,
    at_least_for: Seconds = 0,
    queue_timeout: Seconds | None = None,
    hold_on_retry: bool | None = None,
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

    Some cases are not left to `on_conflict`. A task that meets an earlier
    execution of its own message (one that just retried itself, or was
    delivered twice), or that the broker delivers again under ``acks_late``, is
    run again later, so that its work is not lost; unless the result backend
    says by then that it has succeeded. A call from inside the running instance is never sent again
    nor made to wait: both could not end.

    `mode` says when there is one at a time. Those other than
    ``"while_executing"`` take a place when the task is sent, bound to the
    task's id, and go above the task decorator::

        @single_instance(mode="until_executed", unique_on=["account_id"])
        @shared_task
        def sync(account_id): ...

    - ``"until_executing"``: one in the queue. The place is free as soon as the
      task begins.
    - ``"until_executed"``: one in the queue or running.
    - ``"until_and_while_executing"``: one in the queue and one running. One
      that comes to run while another does is run again later, after
      `countdown` seconds, and keeps its place.

    For them `on_conflict` says what is done with a task that is sent while
    another has the place: ``"skip"`` gives the sender the `AsyncResult` of
    that one, ``"raise"`` raises `AlreadyRunning`, ``"replace"`` revokes that
    one if it is still queued. A task on whose result others count (a member of a
    chain, group or chord, one with a `link` or a `task_id` of its own) is
    sent all the same and ends without running: with None, or with
    `AlreadyRunning`. A place lasts `queue_timeout` seconds (None: an hour)
    beyond the task's `countdown` or `eta`, but not beyond its `expires`, nor for more than
    ten years.

    `hold_on_retry` keeps the lock while a task waits for its own retry (None: in
    ``"until_executed"`` only), as long as a place lasts.

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
    options that can't work (above a task decorator: when Celery makes the task,
    for those that name its arguments), and at the call for arguments that can't be
    part of a name; redis-py's `ConnectionError` if Redis is away when the task is
    sent or begins. Trouble with the lock after that is logged: the function's
    result, or its exception, stands.
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
        queue_timeout=queue_timeout,
        hold_on_retry=hold_on_retry,
        on_lost=on_lost,
        using=using,
    )
    if function is None:
        return partial(_decorate, options)
    return _decorate(options, function)


def _decorate(options: Options, target: Any) -> Any:
    if is_task(target):
        _check_above(options)
        when_made(target, partial(_install_or_disable, options))
        return target
    _check_function(target)
    _check_below(options)
    return _wrap(options, target)


def _wrap(options: Options, function: Callable[P, R]) -> Callable[P, R]:
    signature = signature_of(function)
    single = Single(options, key_maker(options, signature), signature, above=False)

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        call = Call.under_way(alone, running_task(alone), args, kwargs)
        result: R = Execution(single, function, call).run()
        return result

    setattr(alone, MARK, single)
    # Celery reads the signature of the outermost function alone.
    alone.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return alone


def _install_or_disable(options: Options, task: Task[..., Any]) -> None:
    try:
        _install(options, task)
    except Exception as error:
        _disable(task, error)
        raise


def _disable(task: Task[..., Any], error: Exception) -> None:
    """Celery goes on after an error in an app's making: the task must not run without a lock."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    task.run = task.apply_async = refuse  # type: ignore[method-assign]


def _install(options: Options, task: Task[..., Any]) -> None:
    if single_of(task):
        raise ImproperlyConfigured(
            f"Task {task.name} has single_instance more than once: above its task decorator and"
            f" below it (mode={options.mode!r} goes above), or on two tasks of that name"
        )
    # Below what autoretry_for puts there, as the decorator is where it stands below: that may
    # want to retry what is raised here.
    where = "_orig_run" if hasattr(task, "_orig_run") else "run"
    run = getattr(task, where)
    signature = signature_of(run)
    single = Single(options, key_maker(options, signature), signature, above=True)

    @functools.wraps(run)
    def alone(*args: Any, **kwargs: Any) -> Any:
        return Execution(single, run, Call.under_way(alone, task, args, kwargs)).run()

    setattr(alone, MARK, single)
    setattr(task, where, alone)
    take_place_when_sent(task, single)


def _check_above(options: Options) -> None:
    if not options.how.place:
        raise TypeError(
            f"single_instance with mode={options.mode!r} goes below the task decorator, so that it"
            " sees the function: put @shared_task or @app.task above it"
        )


def _check_below(options: Options) -> None:
    if options.how.place:
        raise TypeError(
            f"single_instance with mode={options.mode!r} takes its place when the task is sent,"
            " and so goes above the task decorator: put @shared_task or @app.task below it"
        )


def _check_function(function: Any) -> None:
    named = callable(function) and hasattr(function, "__qualname__")
    if not named or isinstance(function, (type, staticmethod, classmethod)):
        raise TypeError(
            f"single_instance decorates a function, not {shown(function)}"
            f" ({type(function).__name__}); its options are given by name"
        )
    _check_runs_in_the_call(function)


def _check_runs_in_the_call(function: Callable[..., Any]) -> None:
    if is_async(function) or is_generator(function):
        raise TypeError(
            f"{function.__module__}.{function.__qualname__} is a coroutine or generator function:"
            " its body runs after the call, when the lock would be released"
        )
