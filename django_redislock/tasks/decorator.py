"""The decorator `single_instance`, and the task frameworks whose tasks it decorates."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeVar, overload
from weakref import WeakSet

from django_redislock import validators
from django_redislock.introspection import is_generator
from django_redislock.names import short_repr
from django_redislock.validators import Seconds

from .execution import Execution
from .options import VALIDATORS, Options
from .single import MARK, Single, TaskCall


@cache
def frameworks() -> list[Any]:
    """Return the modules of the installed task frameworks. They are layers above this module.

    Each has these functions:

    - ``is_task(target)`` returns whether the decorator is above the framework's task decorator.
    - ``decorate(options, task)`` returns the task that runs as a single instance.
    - ``execution(single, args, kwargs)`` returns the `Execution` of a call, or None if the call is
      not for a task of the framework.

    They also register with `result_was_skipped()`.
    """
    paths = ["django_redislock.tasks.django"]
    if find_spec("celery"):
        paths.insert(0, "django_redislock.celery.framework")
    return list(map(import_module, paths))


definitions: WeakSet[Single] = WeakSet()
"""The definitions of all functions with `single_instance`."""


class EnqueuedTask(Protocol):
    """A task of `django.tasks`, which cannot be called."""

    @property
    def func(self) -> Callable[..., Any]: ...


NOT_FUNCTIONS = type, staticmethod, classmethod
"""Types of objects that have a qualified name like a function."""

F = TypeVar("F", bound=Callable[..., Any] | EnqueuedTask)

ModeName = Literal[
    "while_executing", "until_executing", "until_executed", "until_and_while_executing"
]
OnConflict = Literal["skip", "raise", "retry", "wait", "replace", "queue"]


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
    max_queued: int | None = None,
    limit: int | Callable[..., int] | None = None,
    at_least_for: Seconds = 0,
    max_hold: Seconds | None = None,
    queue_timeout: Seconds | None = None,
    hold_on_retry: bool | None = None,
    on_lost: Callable[..., Any] | Literal["abort"] | None = None,
    using: str | None = None,
) -> Callable[[F], F]: ...


def single_instance(
    function: Callable[..., Any] | EnqueuedTask | None = None, /, **options: Any
) -> Any:
    """Let a task, or any other function, run only once at a time.

    Put it below or above the task decorator::

        @shared_task(bind=True)
        @single_instance(unique_on=["account_id"], on_conflict="retry")
        def sync(self, account_id, full=False): ...

    While the function runs, it holds a lock whose lease is renewed. The lock is named after the
    task, or after the module and qualified name of a plain function. All modes except
    ``"while_executing"`` also take a queue lock when the task is sent. Put them above the task
    decorator. For tasks of `django.tasks` they need `SingleInstanceBackend`.

    A message that was delivered or sent again is not a duplicate of its earlier execution. It runs
    later, unless the result backend confirms that the task has succeeded.

    Args:
        function: The function, if the decorator is used without options.
        unique_on: The names of the arguments whose values are part of the lock's name, or ``"*"``
            for all arguments. None means one lock for all calls.
        key: The lock's name instead: a template such as ``"report:{account_id}"``, or a function
            of the arguments of the call.
        mode: ``"while_executing"``: one instance runs. ``"until_executing"``: one is queued.
            ``"until_executed"``: one is queued or runs. ``"until_and_while_executing"``: one is
            queued, and one runs.
        on_conflict: The policy for a duplicate. ``"skip"`` ends it with None, and ``"raise"``
            raises `AlreadyRunning`. ``"retry"`` sends it again after `countdown`, and ``"wait"``
            waits for the lock; both then raise `AlreadyRunning`, and need ``"while_executing"``.
            ``"replace"`` revokes the queued task, and needs another mode. ``"queue"`` runs all
            tasks, one after the other, in the order in which they were sent, and needs
            ``"until_executed"``.
        timeout: The lease in seconds. It is how long the lock outlives a worker that died. None
            means ``REDISLOCK_TIMEOUT``.
        blocking_timeout: The maximum wait in seconds with ``"wait"``. None waits without a limit.
        countdown: The seconds before a retry. None means about 1 second, doubled with each retry
            up to 60.
        max_retries: The maximum number of retries. None means no limit.
        max_queued: The maximum number of tasks that wait with ``"queue"``. Another one raises
            `AlreadyRunning` in its sender. None means no limit.
        limit: How many instances can run at the same time, or a function of the arguments of the
            call that returns it. None means one.
        at_least_for: The seconds for which the lock is held at least, from the start of the task.
        max_hold: The seconds after which the lock counts as lost, even if the task still runs.
            It must be greater than `timeout` and `at_least_for`. None means no limit.
        queue_timeout: The lease of a queue lock in seconds, in addition to the `countdown` or
            `eta` of the message. None means one hour. The lease does not exceed `expires`.
        hold_on_retry: Whether a task keeps its lock until its own retry, for at most the lease of
            a queue lock. None means only with ``"until_executed"``.
        on_lost: A function that is called once, with the lock, if the lock is lost while the task
            runs. ``"abort"`` raises `LockLost` in the task, if the task runs in the main thread of
            its process, as in the prefork pool. Elsewhere, check ``current_lock().lost``.
        using: The cache alias. None means ``REDISLOCK_CACHE``.

    Raises:
        TypeError: At import, if an option has the wrong type, or if the decorator is on the wrong
            side of the task decorator. At the call, if an argument cannot be part of the name.
        ValueError: At import, if an option has an invalid value, or if options cannot be combined.
        django.core.exceptions.ImproperlyConfigured: At import, if `unique_on` or `key` has a name
            that is not a parameter, or if `django.tasks` or its backend cannot do what the options
            say. Above a task decorator, when Celery creates the task.
        redis.exceptions.ConnectionError: When the task is sent or starts, if Redis is unreachable.
    """
    validators.check_options("single_instance", options, VALIDATORS)
    if function is None:
        return partial(_decorate, Options(**options))
    return _decorate(Options(**options), function)


def _decorate(options: Options, target: Any) -> Any:
    for framework in frameworks():
        if framework.is_task(target):
            return framework.decorate(options, target)
    if not hasattr(target, "__qualname__") or isinstance(target, NOT_FUNCTIONS):
        raise TypeError(
            f"single_instance decorates a function, not {short_repr(target)}"
            f" ({type(target).__name__}). Pass its options by keyword, for example"
            " @single_instance(unique_on=['account_id'])."
        )
    if is_generator(target):
        raise TypeError(
            "single_instance cannot decorate the generator function"
            f" {target.__module__}.{target.__qualname__}: its body runs after the lock is"
            " released"
        )
    if options.locking.when_sent:
        raise TypeError(
            f"single_instance with mode={options.mode!r} locks when the task is sent, so it goes"
            " above the task decorator: put the task decorator below it"
        )
    return wrap(Single(options, target))


def wrap(single: Single) -> Callable[..., Any]:
    """Return the function that holds its lock while it runs."""
    wrapper: Any
    if not single.is_async:

        @wraps(single.function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return _execution(single, args, kwargs).run()

    elif single.options.on_lost == "abort":
        raise ValueError(
            "on_lost='abort' cannot interrupt a coroutine function. Check current_lock().lost, or"
            " pass a function."
        )
    else:

        @wraps(single.function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await _execution(single, args, kwargs).arun()

    single.decorated = wrapper
    setattr(wrapper, MARK, single)
    definitions.add(single)
    # Celery reads the signature of the outermost function only.
    wrapper.__signature__ = single.signature
    return single.decorated


def _execution(single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Execution:
    for framework in frameworks():
        execution: Execution | None = framework.execution(single, args, kwargs)
        if execution is not None:
            return execution
    return Execution(TaskCall(single, args, kwargs, task=single.decorated))
