"""The policies for a call whose lock is not free."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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

    from django_redislock.snapshots import Holding, LockInfo

    from .single import Single

logger = logging.getLogger("django_redislock")

MAX_LOOKS = 3
"""How often the lock can be released before its holder is read."""

MAX_BACK_OFF_SECONDS = 60


@dataclass
class Conflict:
    """A call whose lock is not free."""

    call: Call
    name: str
    single: Single

    inside: bool = False
    """Whether the call is made inside the instance that holds the lock."""

    must_run: bool = False
    """Whether the task runs later, whatever `on_conflict` says."""

    @cached_property
    def error(self) -> AlreadyRunning:
        """The error that names the holder, if it is known."""
        return AlreadyRunning(self.name)

    def look(self) -> bool:
        """Read who holds the lock, and return whether anybody does."""
        try:
            return self._read(self.single.manager.get(self.name))
        except RedisError:
            return True

    async def alook(self) -> bool:
        """Async version of `look()`."""
        try:
            return self._read(await self.single.manager.aget(self.name))
        except RedisError:
            return True

    def look_for_itself(self) -> bool:
        """Return whether an earlier execution of the same message still runs."""
        info = self.single.manager.get(self.name)
        for holding in info.holders if info else ():
            runs = holding.timeout and not holding.metadata.get("queued")
            if runs and self._is_itself(holding):
                self._set_holder(holding)
                return True
        return False

    def _read(self, info: LockInfo | None) -> bool:
        if info is not None and info.holders:
            # A holder in cooldown has no lease.
            found = max(info.holders, key=lambda each: (self._is_itself(each), each.timeout > 0))
            self._set_holder(found)
        return info is not None

    def _set_holder(self, holding: Holding) -> None:
        task_id = holding.holder.task_id
        self.error = AlreadyRunning(
            self.name,
            self.call.task_id if self._is_itself(holding) else complete_id(task_id),
            holding.ttl,
            held_by=holder_text(holding) if holding.holder.host else None,
            in_cooldown=not holding.timeout,
        )

    def _is_itself(self, holding: Holding) -> bool:
        task_id = self.call.task_id
        return bool(task_id) and holding.holder.task_id == recorded_id(str(task_id))

    @property
    def is_with_itself(self) -> bool:
        """Whether an earlier execution of the same message holds the lock.

        It is about to end after ``self.retry()``, or its message was delivered twice.
        """
        task_id = self.call.task_id
        return task_id is not None and task_id == self.error.task_id and not self.inside

    @property
    def policy(self) -> str:
        """The policy that `settle()` follows, if nobody holds the lock for the same message."""
        if self.must_run and not self.inside and self.call.message.has_queue:
            return "retry"
        on_conflict = self.single.options.on_conflict
        return "skip" if POLICIES[on_conflict] is skip else on_conflict


def settle(conflict: Conflict) -> Any:
    """Do what `on_conflict` says, unless the task must run later."""
    task, message = conflict.call.task, conflict.call.message
    stays = conflict.is_with_itself or (conflict.must_run and not conflict.inside)
    if task is not None and stays and message.has_queue:
        _send_again(task, conflict)
    return POLICIES[conflict.single.options.on_conflict](conflict)


def end_duplicate(conflict: Conflict) -> Any:
    """Do what `on_conflict` says for a message that was a duplicate when it was sent."""
    conflict.error = AlreadyRunning(conflict.name, conflict.call.message.duplicate_of)
    return POLICIES[conflict.single.options.on_conflict](conflict)


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
    """Let the worker run the task again later, at most `max_retries` times."""
    task, message = conflict.call.task, conflict.call.message
    max_retries = conflict.single.options.max_retries
    is_last = max_retries is not None and message.conflicts >= max_retries
    if task is None or conflict.inside or not message.has_queue or is_last:
        raise conflict.error
    _send_again(task, conflict)


POLICIES: dict[str, Callable[[Conflict], Any]] = {
    "skip": skip,
    "raise": refuse,
    "retry": retry,
    "wait": refuse,  # after it has waited
    "replace": skip,  # no task is queued that it could replace
}


def back_off(conflicts: int) -> float:
    """Return the seconds to wait after a number of conflicts: 1, 2, 4 ... with jitter."""
    longest = min(MAX_BACK_OFF_SECONDS, 2.0 ** min(conflicts, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311  jitter is no secret


def _send_again(task: Task[..., Any], conflict: Conflict) -> NoReturn:
    call = conflict.call
    met_before = call.message.conflicts
    wanted = validators.wait("countdown", conflict.single.options.countdown)
    countdown = deliverable(task, back_off(met_before) if wanted is None else wanted)
    has_begun = call.may_have_run or (conflict.is_with_itself and not call.is_fresh_retry)
    headers = {CONFLICTS: met_before + 1, AGAIN: has_begun}
    # Not task.retry(): that counts against the task's own max_retries.
    message = task.signature_from_request(task.request, countdown=countdown)
    message.options["headers"] = {**call.message.headers, **headers}
    try:
        message.apply_async()
    except Exception as error:
        # A message that is not acknowledged yet returns to its queue. Of a message that is, a
        # failure remains the only trace.
        if task.acks_late:
            raise Reject(error, requeue=True) from error
        raise
    raise Retry(exc=conflict.error, when=countdown, sig=message)  # type: ignore[arg-type]  # s


def deliverable(task: Task[..., Any], countdown: float) -> float:
    """Return the seconds that the broker can delay a message for, close to `countdown`."""
    return 1.0 if 0 < countdown < 1 and _delays_by_whole_seconds(task.app) else countdown


def _delays_by_whole_seconds(app: Any) -> bool:
    # RabbitMQ does so for its quorum queues, and Celery fails if that results in none.
    try:
        from celery.utils.quorum_queues import detect_quorum_queues
    except ImportError:  # Celery before 5.5
        return False
    driver = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, driver)[0])
