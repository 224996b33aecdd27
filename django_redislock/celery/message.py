"""The messages of Celery tasks, from `task_prerun` to `task_postrun`, and the calls they are for.

If a task ends without running, because it was revoked, has expired, or failed before its function
was called, the process that learns of it releases the queue lock.

A sender chooses the id, the headers and even the attributes of `task.request`. All that is read
from them is validated here.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from contextvars import ContextVar
from inspect import ismethod, unwrap
from typing import TYPE_CHECKING, Any

from celery import Task, signals
from celery.app.task import Context
from celery.exceptions import InvalidTaskError, Reject
from celery.result import AsyncResult
from celery.states import REVOKED, SUCCESS
from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_redislock.lock_types import QueueLock
from django_redislock.manager import locks
from django_redislock.names import check_name
from django_redislock.tasks.deliveries import MAY_HAVE_BEGUN, Claim, Delivery
from django_redislock.tasks.single import Single, TaskCall, marked, queue_lock_token
from django_redislock.text import error_text, printable

if TYPE_CHECKING:
    from .execution import CeleryExecution

logger = logging.getLogger("django_redislock")

CONFLICTS = "redislock_conflicts"
"""How often the task was sent again because of a conflict."""

AGAIN = "redislock_again"
"""Whether an execution of the same task may have begun before it was sent again."""

QUEUE_LOCK = "redislock_queue_lock"
"""The name of the queue lock that the task took when it was sent, or that is promised to it."""

CACHE = "redislock_cache"
"""The cache alias of that queue lock, if the task has one of its own."""

EXPECTED = "redislock_expected"
"""Whether other tasks or a caller depend on the result of this message."""

DUPLICATE = "redislock_duplicate"
"""The id of the task, or "", that held the queue lock when this duplicate was sent. A duplicate
whose result is expected ends without running."""

ARRIVAL = "redislock_arrival"
"""When the message came to the queue of its lock, in microseconds, with `on_conflict="queue"`."""

OURS = (ARRIVAL, CONFLICTS, AGAIN, QUEUE_LOCK, CACHE, EXPECTED, DUPLICATE)

MAX_COUNT = 1_000_000
"""The limit of a count in a header. A forged one may be too large to be sent again."""

MAX_ARRIVAL = 10**16
"""The limit of an arrival. It is in the year 2286."""

MIN_QUEUE_SECONDS = 1.0
"""The least lease of a queue lock, also if the task expires at once."""


def single_of(task: Task[..., Any] | None) -> Single | None:
    """Return how a task runs as a single instance, or None if it does not."""
    return marked(getattr(task, "run", None))


class Message:
    """A message of a task, and what is known about its execution. A forged value counts as absent.

    Args:
        single: How the task runs as a single instance.
        task: The task.
        request: The request of the message.
    """

    execution: CeleryExecution | None = None
    """The call of the decorated function, while it runs."""

    is_started = False
    """Whether the decorated function was called, if only to find that it must not run."""

    is_sent_again = False
    """Whether the execution has sent a message with the same id."""

    earlier_result: AsyncResult[Any] | None = None
    """The result as it was before this execution, perhaps of an earlier one of the message."""

    def __init__(self, single: Single, task: Task[..., Any], request: Context) -> None:
        self.single = single
        self.task = task
        self.headers = _headers_of(request)
        """All headers, unchecked, to be passed on if the task is sent again."""

        args, kwargs = request.args, request.kwargs
        self.task_id = str(request.id)  # it can be a UUID
        self.args = tuple(args) if isinstance(args, list | tuple) else ()
        self.kwargs = dict(kwargs) if isinstance(kwargs, dict) else {}
        self.conflicts = number(self.headers.get(CONFLICTS), MAX_COUNT)
        self.queue_lock = queue_lock_in(self.headers)
        self.delivery = self._delivery(request)
        self.claim = self._claim()
        followers = (
            *(request.chord, request.group, request.chain),
            *(request.callbacks, request.errbacks),
        )
        self.is_expected = bool(self.headers.get(EXPECTED)) or any(followers)
        """Whether other tasks or a caller depend on the result."""

    def _delivery(self, request: Context) -> Delivery:
        if DUPLICATE in self.headers and self.single.options.locking.when_sent:
            return Delivery.DUPLICATE
        if request.is_eager:
            return Delivery.CALLED
        if self.headers.get(AGAIN):
            return Delivery.SENT_AGAIN
        info = request.delivery_info
        if isinstance(info, dict) and info.get("redelivered"):
            return Delivery.REDELIVERED if self.task.acks_late else Delivery.RETURNED
        return Delivery.RETRY if number(request.retries, MAX_COUNT) else Delivery.FIRST

    def _claim(self) -> Claim:
        options = self.single.options
        if self.queue_lock is None or not options.locking.when_sent:
            return Claim.NONE
        return options.policy.claim

    @property
    def ignored_after(self) -> set[str]:
        """The states of its result after which the message must not run."""
        states: set[str] = set()
        # A stored message can be published twice.
        if self.delivery in MAY_HAVE_BEGUN or self.single.options.policy.stores:
            states.add(SUCCESS)
        if self.claim is Claim.REPLACEABLE:
            states.add(REVOKED)
        return states


executed: ContextVar[tuple[Message, ...]] = ContextVar("django_redislock_executed", default=())
"""The messages that are executed here, the innermost last: a task can call another one."""

MAX_EXECUTED = 1000
"""The limit of `executed`, if Celery does not report an end. It is Python's recursion limit."""


def executed_message(task_id: str | None) -> Message | None:
    """Return the message with an id that is executed here, or None.

    A task that it calls can send the message again, and is then the current task.
    """
    return next((each for each in reversed(executed.get()) if each.task_id == task_id), None)


def message_of(task: Task[..., Any]) -> Message | None:
    """Return the message for which a task is executed here, or None."""
    return next((each for each in reversed(executed.get()) if each.task is task), None)


@signals.task_prerun.connect
def begin(sender: Any, **_: Any) -> None:
    if single := single_of(sender):
        message = Message(single, sender, sender.request)
        executed.set((*executed.get(), message)[-MAX_EXECUTED:])
        # Celery records next that the task has started, in place of what an earlier execution of
        # the message recorded.
        if message.ignored_after and sender.track_started:
            with suppress(Exception):  # no id, no result backend, or it is unreachable
                message.earlier_result = sender.AsyncResult(message.task_id)
                message.earlier_result.ready()  # which it remembers, if it is


@signals.after_task_publish.connect
def sent(sender: str, headers: Any, body: Any, **_: Any) -> None:
    if message := executed_message(headers.get("id")):
        message.is_sent_again = True
        if message.execution:
            message.execution.keep_lock_for(sender, body, headers)


@signals.task_postrun.connect
def end(sender: Any, retval: Any, **_: Any) -> None:
    if message := message_of(sender):
        found = executed.get()
        executed.set(found[: found.index(message)])  # also without what began inside it
        # Otherwise the task's class did not call the function, or Celery could not.
        is_kept = message.is_started or message.is_sent_again
        if not (is_kept or returns_to_queue(sender, retval)):
            release_queue_lock(sender, sender.request)


@signals.task_revoked.connect
def revoked(sender: Any, request: Any, **_: Any) -> None:
    release_queue_lock(sender, request)


@signals.task_failure.connect
def failed(sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
    message = executed_message(task_id)
    if message and message.is_sent_again:
        return  # it runs again
    request = sender.request
    if str(request.id) != task_id:  # Celery reports a dead process without its request
        request = Context(id=task_id, args=args, kwargs=kwargs)
    release_queue_lock(sender, request)


@signals.task_internal_error.connect
def rejected(sender: Any, request: Any, exception: Any, **_: Any) -> None:
    """Release the queue lock of a message that the pool process rejected.

    Celery reports other internal errors, too, such as an unreachable result backend. These come
    after `task_prerun`, so `end()` or the execution itself has released the lock, unless the task
    runs again.
    """
    if isinstance(exception, InvalidTaskError):
        release_queue_lock(sender, Context(request))


def release_queue_lock(task: Any, request: Context) -> None:
    """Release what the message of a request still holds."""
    single = single_of(task)
    if single and single.options.may_have_queue_lock:
        message = Message(single, task, request)
        call = call_of(single, task, message.task_id, message.args, message.kwargs)
        single.release_queue_locks(call, message.queue_lock)


def release_dropped(headers: Any) -> None:
    """Release the queue lock of a message that the worker dropped without knowing its task.

    The headers are untrusted. Its token follows from the id, so it is the lock of no other task.
    """
    name = queue_lock_in(headers)
    if name is None:
        return
    task_id = str(headers.get("id"))
    try:
        lock, token = locks.using(headers.get(CACHE)).lock(name), queue_lock_token(task_id)
        QueueLock(lock, token, (None, task_id)).release()
    except Exception as error:
        logger.error(
            "Queue lock not released: task=%s error=%s", printable(task_id), error_text(error)
        )


def returns_to_queue(task: Task[..., Any], error: object) -> bool:
    """Return whether the message of a task that ended with `error` returns to its queue."""
    # A message that was acknowledged before the task ran cannot return.
    return isinstance(error, Reject) and bool(error.requeue and task.acks_late)  # type: ignore[attr-defined]


def call_of(
    single: Single, task: Task[..., Any], task_id: str, args: Any, kwargs: Any
) -> TaskCall:
    """Return the call of a task that is sent.

    It leaves out keyword arguments that a task class adds to its messages, and removes before it
    calls the function.
    """
    # Software that traces tasks can have wrapped the task's method.
    body = unwrap(task.run, stop=ismethod)
    sees_itself = not single.framework and isinstance(getattr(body, "__self__", None), Task)
    first = (task,) if sees_itself else ()
    known = {name: value for name, value in kwargs.items() if single.takes(name)}
    return TaskCall(single, (*first, *args), known, task.name, task_id, len(first), task)


def task_id_in(headers: dict[str, Any], body: Any) -> str:
    """Return the id of the task in a message, which ``task_protocol = 1`` has in the body."""
    fields = headers if "id" in headers else body
    return str(fields.get("id"))


def queue_seconds(single: Single, app: Any, start: Any, expires: Any) -> float:
    """Return how long a queue lock must last for a message.

    Args:
        single: How its task runs as a single instance.
        app: The app, whose time zone applies.
        start: When the task may start: None, seconds from now, or a moment as Celery reads it.
        expires: When the message expires, in the same forms.
    """
    seconds = delay_until(start, app) + single.options.max_queue_seconds
    until = seconds_until(expires, app)
    return seconds if until is None else max(MIN_QUEUE_SECONDS, min(seconds, until))


def delay_until(start: Any, app: Any) -> float:
    """Return the seconds until a task may start."""
    return max(0, seconds_until(start, app) or 0)


def seconds_until(moment: Any, app: Any) -> float | None:
    """Return the seconds until a moment, as Celery reads it. A number is the seconds already."""
    if moment is None or isinstance(moment, int | float):
        return moment
    then: Any = maybe_iso8601(moment)
    return float((maybe_make_aware(then, app.timezone) - app.now()).total_seconds())


def _headers_of(request: Context) -> dict[str, Any]:
    """Return the headers of a request's message.

    Software that traces tasks can add a header with the name "headers". Celery's `headers` are
    then those alone, but each header is an attribute, too.
    """
    attributes = vars(request)
    headers = request.headers if isinstance(request.headers, dict) else {}
    return headers | {name: attributes[name] for name in OURS if name in attributes}


def queue_lock_in(headers: Any) -> str | None:
    """Return the name of the queue lock in the headers of a message, or None."""
    try:
        return check_name(headers.get(QUEUE_LOCK, ""))
    except (AttributeError, TypeError, ValueError):
        return None


def number(value: object, most: int) -> int:
    """Return the number in a header, from 0 to `most`. Return 0 if there is none."""
    return min(max(value, 0), most) if isinstance(value, int) else 0
