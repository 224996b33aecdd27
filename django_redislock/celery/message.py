"""The messages of Celery tasks, and the calls that they are for.

A sender chooses the id, the headers and even the attributes of `task.request`. All that is read
from them is validated here.
"""

from __future__ import annotations

from inspect import Parameter, ismethod, unwrap
from typing import Any, NamedTuple

from celery import Task
from celery.app.task import Context
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_redislock.identity import complete_id
from django_redislock.names import check_name
from django_redislock.tasks.execution import Stack
from django_redislock.tasks.single import Call, Single, marked

CONFLICTS = "redislock_conflicts"
"""How often the task was sent again because of a conflict."""

AGAIN = "redislock_again"
"""Whether an execution of the same task may have begun before it was sent again."""

QUEUE_LOCK = "redislock_queue_lock"
"""The name of the queue lock that the task took when it was sent, or that is promised to it."""

EXPECTED = "redislock_expected"
"""Whether other tasks or a caller depend on the result of this message."""

DUPLICATE = "redislock_duplicate"
"""The id of the task, or "", that held the queue lock when this duplicate was sent. A duplicate
whose result is expected ends without running."""

OURS = (CONFLICTS, AGAIN, QUEUE_LOCK, EXPECTED, DUPLICATE)

FOLLOWER_ATTRIBUTES = ("chord", "group", "chain", "callbacks", "errbacks")
"""The attributes of a request that name tasks which depend on its result."""

MAX_CONFLICTS = 1_000_000


def single_of(task: Task[..., Any]) -> Single | None:
    """Return how a task runs as a single instance, or None if it does not."""
    return marked(task.run)


class Resent(NamedTuple):
    """A message that an execution has sent in its own place."""

    task_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    eta: Any
    expires: Any


class Message:
    """A message of a task, and what is known about its execution. A forged value counts as absent.

    Args:
        single: How the task runs as a single instance.
        task: The task.
        request: `task.request`, or the request of a worker's pool.
        headers: The headers, if `request` does not have them.
    """

    has_started = False
    """Whether the decorated function was called, if only to find that it must not run."""

    is_running = False

    resent: Resent | None = None
    """The last message with the same id that the execution sent."""

    earlier_result: AsyncResult[Any] | None = None
    """The result of an earlier execution of the same message, if it has ended."""

    def __init__(
        self,
        single: Single,
        task: Task[..., Any],
        request: Any,
        headers: dict[str, Any] | None = None,
    ) -> None:
        self.single, self.task = single, task
        self.headers = headers = _headers_of(request) if headers is None else headers
        """All headers, unchecked, to be passed on if the task is sent again."""

        task_id, args, kwargs = request.id, request.args, request.kwargs
        self.task_id = None if task_id is None else str(task_id)  # it can be a UUID
        self.args = tuple(args) if isinstance(args, list | tuple) else ()
        self.kwargs = dict(kwargs) if isinstance(kwargs, dict) else {}
        delivery = getattr(request, "delivery_info", None)
        self.is_redelivered = isinstance(delivery, dict) and bool(delivery.get("redelivered"))
        self.retries = _count(getattr(request, "retries", 0))

        self.has_queue = not (
            getattr(request, "called_directly", False) or getattr(request, "is_eager", False)
        )
        """Whether a worker received the message, so that the task can run again later."""

        self.conflicts = _count(headers.get(CONFLICTS))
        self.is_resent = bool(headers.get(AGAIN))
        self.queue_lock = _name(headers[QUEUE_LOCK]) if QUEUE_LOCK in headers else None
        self.is_duplicate = DUPLICATE in headers and single.options.locking.when_sent
        duplicate_of = headers.get(DUPLICATE)
        self.duplicate_of = complete_id(duplicate_of) if isinstance(duplicate_of, str) else None

        self.is_expected = bool(headers.get(EXPECTED)) or any(
            getattr(request, follower, None) for follower in FOLLOWER_ATTRIBUTES
        )
        """Whether other tasks or a caller depend on the result."""

        self.may_have_run = self.is_resent or (self.is_redelivered and bool(task.acks_late))
        """Whether an earlier execution of the message may have begun. A redelivered message was
        only fetched by another worker if it is acknowledged early."""

        self.is_replaceable = (
            single.options.on_conflict == "replace" and self.queue_lock is not None
        )
        """Whether a newer task can have replaced the message."""

    @property
    def call(self) -> Call:
        """The call of the task that the message is for."""
        return call_of(self.single, self.task, self.task_id, self.args, self.kwargs)


NO_REQUEST = Context()
"""The request of a direct call, which has no message."""

under_way: Stack[Message] = Stack("django_redislock_messages")
"""The messages that are executed, each from Celery's `task_prerun` to its `task_postrun`.

A header can forge an attribute of `task.request`, but not this.
"""


def call_of(
    single: Single, task: Task[..., Any], task_id: str | None, args: Any, kwargs: Any
) -> Call:
    """Return the call of a task that is sent.

    It leaves out keyword arguments that a task class adds to its messages, and removes before it
    calls the function.
    """
    # Software that traces tasks can have wrapped the task's method.
    body = unwrap(task.run, stop=ismethod)
    sees_itself = not single.framework and isinstance(getattr(body, "__self__", None), Task)
    first = (task,) if sees_itself else ()
    parameters = single.signature.parameters
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    known = {
        name: value for name, value in (kwargs or {}).items() if takes_any or name in parameters
    }
    return Call(
        *(single, (*first, *(args or ())), known, task.name, task_id or "", len(first)), task=task
    )


def seconds_until(moment: Any, app: Any) -> float | None:
    """Return the seconds until a moment, as Celery reads it. A number is the seconds already."""
    if moment is None or isinstance(moment, int | float):
        return moment
    then: Any = maybe_iso8601(moment)
    return float((maybe_make_aware(then, app.timezone) - app.now()).total_seconds())


def _headers_of(request: Any) -> dict[str, Any]:
    """Return the headers of a request's message.

    Software that traces tasks can add a header with the name "headers". Celery's `headers` are
    then those alone, but each header is an attribute, too.
    """
    attributes, headers = getattr(request, "__dict__", {}), getattr(request, "headers", None)
    found = dict(headers) if isinstance(headers, dict) else {}
    return found | {name: attributes[name] for name in OURS if name in attributes}


def _count(value: object) -> int:
    return min(max(value, 0), MAX_CONFLICTS) if isinstance(value, int) else 0


def _name(value: object) -> str | None:
    try:
        return check_name(value)
    except (TypeError, ValueError):
        return None
