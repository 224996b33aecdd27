"""Whether a task that ends with an error is executed again."""

from datetime import datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery.exceptions import Ignore, Reject, Retry
from celery.utils.time import get_exponential_backoff_interval, maybe_iso8601, maybe_make_aware

from .message import id_of

if TYPE_CHECKING:
    from celery import Task


SENT_AGAIN = "sent again"
"""Note: for how many seconds the queue lock of the message that the execution sent again lasts."""

BEGUN = "begun"
"""Note: that the task's body was called, if only to see that it may not run."""

ENDED = "ended"
"""Note: the result of an earlier execution of the same message, if that has ended."""

FORESEEN = "foreseen"
"""Note: that Celery will probably retry the execution."""

MOST_DOUBLINGS = 64
"""An exponential back-off has reached every sensible maximum after so many retries."""

_notes: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""The notes about each execution, by its request.

They must not be attributes of the request. Celery makes every header of a message an attribute,
so a sender could forge them.
"""


def remember(task: "Task[..., Any]", what: str, value: Any = True) -> None:
    """Make a note about the current execution of `task`."""
    _notes_of(task)[what] = value


def recall(task: "Task[..., Any]", what: str) -> Any:
    """Return a note about the current execution of `task`, or None if there is no such note."""
    return _notes_of(task).get(what)


def _notes_of(task: "Task[..., Any]") -> dict[str, Any]:
    # Task.__call__() pushes a copy of the request. The notes belong to the first one.
    current = task.request
    stack: Any = task.request_stack
    task_id = id_of(current)
    first = next((each for each in stack.stack if id_of(each) == task_id), current)
    return _notes.setdefault(first, {})


def sent_again_for(task: "Task[..., Any]") -> float:
    """Return for how many seconds the queue lock of the message that was sent again lasts, or 0
    if the execution has sent nothing."""
    return float(recall(task, SENT_AGAIN) or 0.0)


def comes_again(task: "Task[..., Any]", error: BaseException) -> float | None:
    """Seconds until a task that ends so is executed again, as far as is known; None: it is not."""
    if isinstance(error, Retry):
        remember(task, FORESEEN)  # an eager one that is raised to the caller does not come
        return _delay(task, error.when)
    if isinstance(error, Reject):
        # What was acknowledged before it ran can't go back to its queue.
        requeued = error.requeue and task.acks_late  # type: ignore[attr-defined]  # it is there
        return 0 if requeued else None
    if isinstance(error, Ignore):  # of ``self.replace()``, by the same task
        return None if recall(task, SENT_AGAIN) is None else 0
    if _is_retried_by_celery(task, error):
        remember(task, FORESEEN)
        return _delay(task, _when_by_celery(task))
    return None


def _delay(task: "Task[..., Any]", when: Any) -> float:
    if isinstance(when, datetime | str):
        app, moment = task.app, maybe_iso8601(when)
        then = maybe_make_aware(moment, app.timezone)  # type: ignore[arg-type]  # a datetime
        return max(0.0, (then - app.now()).total_seconds())
    return float(when or 0)


def _is_retried_by_celery(task: "Task[..., Any]", error: BaseException) -> bool:
    """Whether ``autoretry_for`` will catch it. That stands around the function, and so comes
    later: it is told from the options, which are the task's attributes."""
    wanted = tuple(getattr(task, "autoretry_for", ()))
    unwanted = (Ignore, *getattr(task, "dont_autoretry_for", ()))
    if not isinstance(error, wanted) or isinstance(error, unwanted):
        return False
    request, most = task.request, _most_retries(task)
    if request.called_directly or not isinstance(request.retries, int):  # a header can forge it
        return False
    return most is None or request.retries < most


def _when_by_celery(task: "Task[..., Any]") -> Any:
    """In how many seconds at most, or when, ``autoretry_for`` has it come again."""
    if backoff := float(getattr(task, "retry_backoff", False)):
        factor, most = int(max(1.0, backoff)), int(getattr(task, "retry_backoff_max", 600))
        retries = min(task.request.retries, MOST_DOUBLINGS)
        return get_exponential_backoff_interval(factor, retries, most)
    wanted = getattr(task, "retry_kwargs", {})
    when = wanted.get("eta") or wanted.get("countdown")
    return task.default_retry_delay if when is None else when


def _most_retries(task: "Task[..., Any]") -> int | None:
    most: int | None = getattr(task, "retry_kwargs", {}).get("max_retries", task.max_retries)
    return most
