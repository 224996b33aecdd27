"""Conflicts of single-instance tasks, and assertions about their outcome."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from .. import validators
from ..exceptions import AlreadyRunning
from ..names import short_repr
from ..signals import task_skipped
from ..tasks.conflict import SIMULATED
from ..tasks.django import call_of
from ..tasks.single import TaskCall, marked
from ..text import printable
from ..validators import Seconds
from .holding import held_by, not_free

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Other:
    """The other instance of a task, which `conflict()` simulates."""

    name: str
    """The name of the lock or queue lock that the call needs first."""

    task_id: str
    """The id of the task of the other instance."""


@contextmanager
def conflict(task: Any, /, *args: Any, **kwargs: Any) -> Iterator[Other]:
    """Simulate another instance of a task until the end of ``with``, so that a call conflicts.

    The other instance holds the lock, the queue lock, or both, according to the options of
    `single_instance`, and the whole `limit`. So `delay()`, `apply_async()`, `apply()` and
    `enqueue()` with the same arguments conflict, in this process and in every worker with locks on
    the same server.

    Args:
        task: A task of Celery or `django.tasks`, or a plain function, with `single_instance`.
        *args: The positional arguments of the call, without the task itself.
        **kwargs: The keyword arguments of the call.

    Yields:
        The other instance.

    Raises:
        LockNotAcquired: A lock that the call needs is not free.
        TypeError: The task has no `single_instance`, or the arguments do not fit.
    """
    call = _call_of(task, args, kwargs)
    with ExitStack() as stack:
        calls = [
            replace(call, task_id=str(uuid4())) for _ in range(call.single.limit_for(call) or 1)
        ]
        first, *_ = [_hold_for(stack, each) for each in calls]
        yield first


def _call_of(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskCall:
    is_of_celery, is_of_django = hasattr(task, "apply_async"), hasattr(task, "aenqueue")
    single = marked(task.run if is_of_celery else task.func if is_of_django else task)
    if single is None:
        raise TypeError(f"task must be decorated with single_instance, got {short_repr(task)}")
    if is_of_celery:
        from ..celery import message

        return message.call_of(single, task, "", args, kwargs)
    if is_of_django:
        return call_of(single, task, args, kwargs)
    first = (task.__self__,) if inspect.ismethod(task) else ()
    return TaskCall(single, (*first, *args), kwargs, added_args=len(first))


def _hold_for(stack: ExitStack, call: TaskCall) -> Other:
    """Hold the locks of a call until the end of `stack`."""
    single, locking = call.single, call.single.options.locking
    name, task_id = single.name_of(call), str(call.task_id)
    if locking.while_running and (locking.separate or not locking.when_sent):
        stack.enter_context(held_by((call.name, task_id), single.lock(name, call)))
    if not locking.when_sent:
        return Other(name, task_id)
    queue_lock_name = single.queue_lock_name(name)
    queue_lock = single.queue_lock(single.lock(queue_lock_name, call), call)
    queue_lock.metadata[SIMULATED] = True
    if not queue_lock.acquire(single.options.max_queue_seconds):
        raise not_free(queue_lock_name)
    stack.callback(queue_lock.release)
    return Other(queue_lock_name, task_id)


@contextmanager
def assert_skipped(task: Any = None, *, within: Seconds = 1) -> Iterator[list[Arguments]]:
    """Assert that a task is skipped in the ``with`` block or shortly after it.

    The task must be skipped in this process. In modes with a queue lock, the sender skips it.
    Otherwise the worker does, so use ``task_always_eager``, `apply()`, or a worker in a thread
    (`celery.contrib.testing.worker`).

    Args:
        task: The task. None means any task.
        within: The seconds after the block in which the task can still be skipped.

    Yields:
        A list that gets the arguments of each `task_skipped` signal: dictionaries with `sender`,
        `name`, `task_id`, `holder_task_id`, `args` and `kwargs`.

    Raises:
        AssertionError: The task was not skipped.
    """
    with _received(task_skipped, task, "skipped", within, lambda arguments: True) as skips:
        yield skips


@contextmanager
def assert_retried(task: Any = None, *, within: Seconds = 1) -> Iterator[list[Arguments]]:
    """Assert that a task is retried because of a conflict, in the ``with`` block or shortly after.

    Other retries of the task do not count. Use a worker in a thread of this process. Without a
    queue, as with ``task_always_eager`` and `apply()`, the task raises `AlreadyRunning`.

    Args:
        task: The task. None means any task.
        within: The seconds after the block in which the task can still be retried.

    Yields:
        A list that gets the arguments of each `task_retry` signal of Celery: dictionaries with
        `sender`, `request` and `reason`. ``reason.exc`` is the `AlreadyRunning`, and
        ``reason.when`` is the delay in seconds.

    Raises:
        AssertionError: The task was not retried.
    """

    from celery.signals import task_retry

    def is_conflict(arguments: Arguments) -> bool:
        return isinstance(getattr(arguments["reason"], "exc", None), AlreadyRunning)

    with _received(task_retry, task, "retried for a conflict", within, is_conflict) as retries:
        yield retries


@contextmanager
def _received(
    signal: Any, task: Any, what: str, within: Seconds, counts: Callable[[Arguments], bool]
) -> Iterator[list[Arguments]]:
    """Collect the arguments of a signal that count, and assert that there are any."""
    longest, has_received = validators.at_least("within", within), threading.Event()
    received: list[Arguments] = []

    def receive(*, signal: Any, **arguments: Any) -> None:
        if (task is None or task == arguments["sender"]) and counts(arguments):
            received.append(arguments)
            has_received.set()

    signal.connect(receive, weak=False)
    try:
        yield received
        if not has_received.wait(longest):
            name = getattr(task, "name", None) or getattr(task, "__qualname__", task)
            subject = "No task was" if task is None else f"Task {printable(name)} was not"
            raise AssertionError(f"{subject} {what} within {longest:g} s")
    finally:
        signal.disconnect(receive)
