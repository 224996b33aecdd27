"""Single-instance tasks that meet another instance, and what they do then."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from celery.signals import task_retry
from celery.utils import uuid

from .. import values
from ..celery.call import Call, layers
from ..celery.single import MARK, Single, single_of
from ..exceptions import AlreadyRunning
from ..names import shown
from ..signals import task_skipped
from ..text import printable
from ..values import Seconds
from .holding import held, not_free, of_another

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Other:
    """The instance that is in the way."""

    name: str
    """Of the lock, or the place in the queue, that the call meets first."""

    task_id: str
    """Its task's id."""


@contextmanager
def conflict(task: Any, /, *args: Any, **kwargs: Any) -> Iterator[Other]:
    """Have another instance in the way of this call of a task, until the end of ``with``.

    It holds what the call would need, as the options of `single_instance` make it: the lock, or
    the place in the queue, or both; and all of a `limit`. So `delay`, `apply_async` and `apply`
    with these arguments meet it, here or in a worker whose locks are on the same server.

    `task` is a task, or a plain function, with `single_instance`; the arguments are those of the
    call, without the task itself. Raises `LockError` if what it needs is not free, and where the
    arguments don't fit what the call itself raises.
    """
    single = _single_of(task)
    with ExitStack() as stack:
        calls = [_call(task, single, args, kwargs) for _ in range(single.options.limit or 1)]
        first, *_ = [_get_in_the_way(stack, single, call) for call in calls]
        yield first


def _single_of(task: Any) -> Single:
    marked = (vars(each)[MARK] for each in layers(task) if MARK in getattr(each, "__dict__", ()))
    found = single_of(task) if _is_task(task) else next(marked, None)
    if found is None:
        raise TypeError(f"task must be one with single_instance, got {shown(task)}")
    return found


def _is_task(task: Any) -> bool:
    return hasattr(task, "apply_async")


def _call(task: Any, single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    if _is_task(task):
        return single.call(task, uuid(), args, kwargs)
    first = (task.__self__,) if inspect.ismethod(task) else ()
    return Call(task, None, (*first, *args), kwargs, uuid())


def _get_in_the_way(stack: ExitStack, single: Single, call: Call) -> Other:
    how, name, task_id = single.options.how, single.name_of(call), str(call.task_id)
    if how.lock and (how.apart or not how.place):
        stack.enter_context(held(of_another(single.lock(name), (call.name, task_id))))
    if not how.place:
        return Other(name, task_id)
    queued = single.place_name(name)
    place = single.place(single.lock(queued), call)
    if not place.take(single.options.longest_in_queue):
        raise not_free(queued)
    stack.callback(place.leave)
    return Other(queued, task_id)


@contextmanager
def assert_skipped(task: Any = None, *, within: Seconds = 1) -> Iterator[list[Facts]]:
    """Raise `AssertionError` unless `task` (None: any) is skipped in the block, or `within` so
    many seconds after it, because another instance is in its way.

    Gives a list of what the signal `task_skipped` told: dictionaries with `sender`, `name`,
    `task_id`, `holder_task_id`, `args` and `kwargs`. It is sent where the task is skipped: by who
    sends it, for modes that take a place, else by the worker. That must be in this process:
    ``task_always_eager``, `apply`, or a thread (`celery.contrib.testing.worker`).
    """
    with _told(task_skipped, task, "skipped", within, lambda facts: True) as skips:
        yield skips


@contextmanager
def assert_retried(task: Any = None, *, within: Seconds = 1) -> Iterator[list[Facts]]:
    """Raise `AssertionError` unless `task` (None: any) is put off in the block, or `within` so
    many seconds after it, to be run again because another instance is in its way.

    Gives a list of what Celery's signal `task_retry` told: dictionaries with `sender`, `request`
    and `reason`, which has the `AlreadyRunning` as `reason.exc` and the seconds as `reason.when`.
    Other retries of the task don't count. It takes a worker in a thread of this process: without
    a queue, as in ``task_always_eager`` and `apply`, such a task raises `AlreadyRunning`.
    """

    def is_conflict(facts: Facts) -> bool:
        return isinstance(getattr(facts["reason"], "exc", None), AlreadyRunning)

    with _told(task_retry, task, "retried for a conflict", within, is_conflict) as retries:
        yield retries


@contextmanager
def _told(
    signal: Any, task: Any, what: str, within: Seconds, counts: Callable[[Facts], bool]
) -> Iterator[list[Facts]]:
    longest, heard = values.at_least("within", within), threading.Event()
    told: list[Facts] = []

    def listen(*, signal: Any, **facts: Any) -> None:
        if (task is None or task == facts["sender"]) and counts(facts):
            told.append(facts)
            heard.set()

    signal.connect(listen, weak=False)
    try:
        yield told
        if not heard.wait(longest):
            raise AssertionError(f"{_nobody(task)} was {what} within {longest:g} s")
    finally:
        signal.disconnect(listen)


def _nobody(task: Any) -> str:
    if task is None:
        return "No task"
    return (
        f"Not once {printable(getattr(task, 'name', None) or getattr(task, '__qualname__', task))}"
    )
