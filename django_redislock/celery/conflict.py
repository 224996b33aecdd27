"""What a call does that meets a running instance."""

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Reject, Retry
from redis.exceptions import RedisError

from django_redislock import validators
from django_redislock.exceptions import AlreadyRunning
from django_redislock.identity import complete_id, recorded_id
from django_redislock.signals import task_skipped
from django_redislock.text import holder_text, short_duration

from .call import Call
from .message import AGAIN, CONFLICTS

if TYPE_CHECKING:
    from celery import Task

    from django_redislock.manager import LockManager
    from django_redislock.snapshots import Holding

    from .options import Options

logger = logging.getLogger("django_redislock")

LOOKS = 3
"""How often a holder may be gone before it could be told who it was."""

LONGEST_BACK_OFF = 60
"""Seconds."""


@dataclass(slots=True)
class Conflict:
    """A call that could not have its lock."""

    call: Call
    name: str
    options: "Options"
    manager: "LockManager"

    inside: bool = False
    """Whether the call was made from inside the very instance that it meets."""

    owed: bool = False
    """Whether it was promised that it runs, and so does not give way."""

    error: AlreadyRunning = field(init=False)
    """The error that says who holds, as far as that could be seen."""

    def __post_init__(self) -> None:
        self.error = AlreadyRunning(self.name)

    def look(self) -> bool:
        """Learn who holds; False if nobody does any more."""
        try:
            held = self.manager.get(self.name)
        except RedisError:
            return True
        if held is not None and held.holders:
            running = (each for each in held.holders if each.timeout)
            self._is_with(self._own_past(held.holders) or next(running, held.holders[0]))
        return held is not None

    def look_for_own_past(self) -> bool:
        """Learn whether an earlier execution of the same message still runs."""
        held = self.manager.get(self.name)
        running = [each for each in held.holders if _runs(each)] if held else []
        if own := self._own_past(running):
            self._is_with(own)
        return own is not None

    def _is_with(self, holding: "Holding") -> None:
        is_own = self._is_own_past(holding)
        self.error = AlreadyRunning(
            self.name,
            self.call.task_id if is_own else complete_id(holding.holder.task_id),
            holding.ttl,
            held_by=holder_text(holding) if holding.holder.host else None,
            in_cooldown=not holding.timeout,
        )

    def _own_past(self, holders: Iterable["Holding"]) -> "Holding | None":
        return next(filter(self._is_own_past, holders), None)

    def _is_own_past(self, holding: "Holding") -> bool:
        task_id = self.call.task_id
        return bool(task_id) and holding.holder.task_id == recorded_id(str(task_id))

    @property
    def with_own_past(self) -> bool:
        """Whether an earlier execution of the same message holds.

        One that is about to end, for it has sent itself again with
        ``self.retry()``, or one whose message was delivered twice.
        """
        task_id = self.call.task_id
        return task_id is not None and task_id == self.error.task_id and not self.inside

    @property
    def policy(self) -> str:
        """What settle() will do, as far as it depends on the call and not on the holder."""
        if self.owed and not self.inside and self.call.message.has_queue:
            return "retry"
        return "skip" if POLICIES[self.options.on_conflict] is skip else self.options.on_conflict


def _runs(holding: "Holding") -> bool:
    """Whether it is of one that runs, and not a place in the queue or what only cools down."""
    return bool(holding.timeout and not holding.metadata.get("queued"))


def settle(conflict: Conflict) -> Any:
    """Do what `on_conflict` says; but a task never gives way to its own past, nor does one that
    was promised to run."""
    task = conflict.call.task
    stays = conflict.with_own_past or (conflict.owed and not conflict.inside)
    if task is not None and stays and conflict.call.message.has_queue:
        _send_again(task, conflict)
    return POLICIES[conflict.options.on_conflict](conflict)


def end_duplicate(conflict: Conflict) -> Any:
    """Do what `on_conflict` says for a message that was a duplicate when it was sent."""
    conflict.error = AlreadyRunning(conflict.name, conflict.call.message.duplicate_of)
    return POLICIES[conflict.options.on_conflict](conflict)


def _reason(error: AlreadyRunning) -> str:
    """Return why the lock is not free, as ``key=value``."""
    if error.in_cooldown and error.expires_in is not None:
        return f"cooldown={short_duration(error.expires_in)}"
    return f"holder={error.task_id or error.held_by or 'unknown'!r}"


def skip(conflict: Conflict) -> None:
    """Log a warning and send `task_skipped`. The task then completes without running."""
    call, error = conflict.call, conflict.error
    event = "Call skipped" if call.task is None else "Task skipped"
    logger.warning("%s: task=%s name=%r %s", event, call, conflict.name, _reason(error))
    task_skipped.send_robust(
        sender=call.sender,
        name=conflict.name,
        task_id=call.task_id,
        holder_task_id=error.task_id,
        args=call.sent_args,
        kwargs=call.kwargs,
    )


def refuse(conflict: Conflict) -> NoReturn:
    """Raise `AlreadyRunning`."""
    raise conflict.error


def retry(conflict: Conflict) -> NoReturn:
    """Have the worker run the task again later, as often as is allowed."""
    task = conflict.call.task
    if task is None or conflict.inside or not conflict.call.message.has_queue:
        raise conflict.error
    most = conflict.options.max_retries
    if most is not None and conflict.call.message.conflicts >= most:
        raise conflict.error
    _send_again(task, conflict)


POLICIES: dict[str, Callable[[Conflict], Any]] = {
    "skip": skip,
    "raise": refuse,
    "retry": retry,
    # It has waited by now, as long as it was to.
    "wait": refuse,
    # Where there is nothing left to replace.
    "replace": skip,
}


def back_off(conflicts: int) -> float:
    """Return the seconds to wait after so many conflicts before: 1, 2, 4 ... with jitter."""
    longest = min(LONGEST_BACK_OFF, 2.0 ** min(conflicts, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311  jitter is no secret


def _send_again(task: "Task[..., Any]", conflict: Conflict) -> NoReturn:
    met_before = conflict.call.message.conflicts
    countdown = deliverable(task, _countdown(conflict.options, met_before))
    repeats = conflict.with_own_past and not conflict.call.is_fresh_retry
    has_begun = repeats or conflict.call.may_have_run
    headers = {CONFLICTS: met_before + 1, AGAIN: has_begun}
    # Not task.retry(): that counts against the task's own max_retries.
    message = task.signature_from_request(task.request, countdown=countdown)
    message.options["headers"] = {**conflict.call.message.headers, **headers}
    try:
        message.apply_async()
    except Exception as trouble:
        _keep_message(task, trouble)
        raise
    raise Retry(exc=conflict.error, when=countdown, sig=message)  # type: ignore[arg-type]  # s


def _countdown(options: "Options", met_before: int) -> float:
    wanted = validators.wait("countdown", options.countdown)
    return back_off(met_before) if wanted is None else wanted


def deliverable(task: "Task[..., Any]", countdown: float) -> float:
    """Seconds that the broker can delay a message for, about as many as wanted."""
    return 1.0 if 0 < countdown < 1 and _delays_by_whole_seconds(task.app) else countdown


def _delays_by_whole_seconds(app: Any) -> bool:
    # RabbitMQ does so for its quorum queues, and Celery fails where that comes to none.
    try:
        from celery.utils.quorum_queues import detect_quorum_queues
    except ImportError:  # Celery before 5.5
        return False
    driver = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, driver)[0])


def _keep_message(task: "Task[..., Any]", trouble: Exception) -> None:
    # A message that is not acknowledged yet goes back to its queue; of one that
    # is, a failure remains the only trace.
    if task.acks_late:
        raise Reject(trouble, requeue=True) from trouble
