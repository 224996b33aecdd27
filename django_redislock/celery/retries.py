"""Whether a task that ends with an error is executed again."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from celery.utils.time import get_exponential_backoff_interval, maybe_iso8601, maybe_make_aware

if TYPE_CHECKING:
    from celery import Task


SENT_AGAIN = "redislock_sent_again"
"""Of an execution: for how many seconds the place lasts of what it has sent in its own stead."""

BEGUN = "redislock_begun"
"""Of an execution: that the task's body was called, if only to see that it may not run."""

ENDED = "redislock_ended"
"""Of an execution: the result of an earlier one of its message, if that has ended."""

FORESEEN = "redislock_foreseen"
"""Of an execution: that Celery will retry it, as far as can be told before it does."""


def remember(task: "Task[..., Any]", what: str, value: Any = True) -> None:
    """Note it with the execution that is under way."""
    # A class of tasks whose call goes on by Celery's own has a copy of the request there.
    current = task.request
    stack: Any = task.request_stack
    for request in (current, *(each for each in stack.stack if each.id == current.id)):
        setattr(request, what, value)


def is_remembered(task: "Task[..., Any]", what: str) -> bool:
    return bool(getattr(task.request, what, False))


def sent_again_for(task: "Task[..., Any]") -> float:
    """Seconds for which what the task has sent again has its place; 0 if it has sent nothing."""
    # What others say in a message's headers is found here, too.
    seconds = getattr(task.request, SENT_AGAIN, 0.0)
    return seconds if isinstance(seconds, float) else 0.0


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
        return 0 if is_remembered(task, SENT_AGAIN) else None
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
    return not request.called_directly and (most is None or request.retries < most)


def _when_by_celery(task: "Task[..., Any]") -> Any:
    """In how many seconds at most, or when, ``autoretry_for`` has it come again."""
    if backoff := float(getattr(task, "retry_backoff", False)):
        factor, most = int(max(1.0, backoff)), int(getattr(task, "retry_backoff_max", 600))
        return get_exponential_backoff_interval(factor, task.request.retries, most)
    wanted = getattr(task, "retry_kwargs", {})
    when = wanted.get("eta") or wanted.get("countdown")
    return task.default_retry_delay if when is None else when


def _most_retries(task: "Task[..., Any]") -> int | None:
    most: int | None = getattr(task, "retry_kwargs", {}).get("max_retries", task.max_retries)
    return most
