"""The policies for a Celery task whose lock is not free."""

from __future__ import annotations

import random
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Reject, Retry

from django_redislock import validators
from django_redislock.exceptions import AlreadyRunning
from django_redislock.tasks.conflict import Conflict

from .message import AGAIN, CONFLICTS, TaskCall

MAX_BACK_OFF_SECONDS = 60


class TaskConflict(Conflict):
    """A Celery task whose lock is not free."""

    call: TaskCall

    must_run = False
    """Whether the task runs later, whatever `on_conflict` says."""

    @property
    def policy(self) -> str:
        """The policy that `settle()` follows, if nobody holds the lock for the same message."""
        if self.must_run and not self.inside and self.call.message.has_queue:
            return "retry"
        return super().policy

    def settle(self) -> Any:
        """Do what `on_conflict` says, unless the task must run later."""
        must_run = self.must_run and not self.inside
        if self.call.message.has_queue and (self.is_with_itself or must_run or self._may_retry):
            self._send_again()
        return super().settle()

    def end_duplicate(self) -> Any:
        """Do what `on_conflict` says for a message that was a duplicate when it was sent."""
        self.error = AlreadyRunning(self.name, self.call.message.duplicate_of)
        return super().settle()

    @property
    def _may_retry(self) -> bool:
        options = self.single.options
        if options.on_conflict != "retry" or self.inside:
            return False
        return options.max_retries is None or self.call.message.conflicts < options.max_retries

    def _send_again(self) -> NoReturn:
        call, task = self.call, self.call.task
        met_before = call.message.conflicts
        wanted = validators.wait("countdown", self.single.options.countdown)
        countdown = deliverable(task, back_off(met_before) if wanted is None else wanted)
        has_begun = call.message.may_have_run or (
            self.is_with_itself and not call.message.is_fresh_retry
        )
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
        raise Retry(exc=self.error, when=countdown, sig=message)  # type: ignore[arg-type]  # s


def back_off(conflicts: int) -> float:
    """Return the seconds to wait after a number of conflicts: 1, 2, 4 ... with jitter."""
    longest = min(MAX_BACK_OFF_SECONDS, 2.0 ** min(conflicts, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311  jitter is no secret


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
