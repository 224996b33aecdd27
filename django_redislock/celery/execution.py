"""The call of the function of a Celery task under its lock, with what needs a queue."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, cast

from celery import Task
from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, Reject, Retry
from celery.states import REVOKED, SUCCESS

from django_redislock import clock
from django_redislock.identity import complete_id
from django_redislock.introspection import reject_deferred_result
from django_redislock.lock_types import BaseLock
from django_redislock.snapshots import Holding
from django_redislock.tasks.conflict import Conflict
from django_redislock.tasks.execution import Execution
from django_redislock.tasks.single import TaskCall

from . import board
from .message import (
    AGAIN,
    CONFLICTS,
    DUPLICATE,
    Message,
    call_of,
    queue_seconds,
    returns_to_queue,
    single_of,
)
from .results import AGAIN as MAY_STORE_LATER
from .results import ended_queue_lock
from .skipped import record_skip

logger = logging.getLogger("django_redislock")

MAX_BACK_OFF_SECONDS = 60

TERMINATED = {number - 256 for number in signal.valid_signals()}
"""The codes of the `SystemExit` with which a signal ends a pool process of Celery."""


class CeleryExecution(Execution):
    """One call of the function of a Celery task."""

    slot: board.Slot | None = None
    """The slot of its lock on the board."""

    kept_until = 0.0
    """Until when the lock must be kept for a message that the task has sent in its own place."""

    def __init__(self, call: TaskCall, message: Message) -> None:
        message.has_started = True  # also if the lock has no valid name
        super().__init__(call)
        self.message, self.task, self.must_run = message, message.task, message.must_run
        self.can_run_later = message.has_queue and not message.is_duplicate and not self.is_inside
        # In a mode with separate locks, the queued task runs after the running one.
        must_run_later = self.must_run or self.options.locking.separate
        self.must_run_later = must_run_later and self.can_run_later
        """Whether the task is sent again if its lock is not free, with any `on_conflict`."""

    def run(self) -> Any:
        """Run the function under its locks, or do what `on_conflict` says."""
        self.message.execution = self
        try:
            return super().run()
        finally:
            if self.slot and self.slot.pid == os.getpid():  # not if another process took it, too
                self.slot.pid = 0
            self.message.execution = None

    def keep_lock_for(self, task_name: str, body: Any, headers: Any) -> None:
        """Keep the lock for a message that the task has sent in its own place, if it needs it."""
        task, call, message = self.task.app.tasks.get(task_name), self.call, self.message
        single = single_of(task) if task else None
        if not (self.options.holds_on_retry and task and single):
            return
        try:
            args, kwargs = tuple(body[0]), dict(body[1])
            # With other arguments than the message has, the name follows from them.
            if task is not self.task or (args, kwargs) != (message.args, message.kwargs):
                call = call_of(single, task, message.task_id, args, kwargs)
            if call.single.name_of(call) == self.name:
                times = headers.get("eta"), headers.get("expires")
                seconds = queue_seconds(self.single, self.task.app, *times)
                self.kept_until = clock.now() + seconds
        except Exception:  # it must not hide what the task did
            logger.exception("Cannot determine whether the task runs again: task=%s", call)

    def _ended_queue_lock(self, conflict: Conflict) -> Holding | None:
        return ended_queue_lock(self.task, conflict.queue_locks)

    def _prepare_queue_lock(self) -> Conflict | None:
        message, name = self.message, self.queue_lock_name
        if message.is_replaceable and self._has_ended(REVOKED):
            logger.info("Replaced task ignored: task=%s", self.call)
            raise Ignore("A newer task has replaced this one")
        # The arguments can have changed since it was sent.
        if message.queue_lock and message.queue_lock != name:
            self.single.release_queue_lock(message.queue_lock, self.call)
        if not message.is_duplicate:
            return None
        holder = message.headers[DUPLICATE]
        return Conflict(self.call, name, complete_id(holder) if isinstance(holder, str) else None)

    def _call_function(self) -> Any:
        call, function = self.call, self.single.function
        if self.message.may_have_run and self._has_ended(SUCCESS):
            logger.info("Redelivered task ignored, it has already succeeded: task=%s", call)
            raise Ignore("The task has already succeeded")
        # An eager retry runs at once, so it must come after the release.
        if self.options.holds_on_retry and self.message.has_queue:
            function = with_autoretry(self.task, function)
        return reject_deferred_result(self.single.function, function(*call.args, **call.kwargs))

    def _acquire_or_conflict(self, lock: BaseLock) -> Conflict | None:
        """Acquire the lock, unless the task has to run later.

        An earlier execution of the same message may still run. With `limit` both would run. With
        ``"wait"`` this one would run before the result of the other is known. With ``"skip"`` the
        history would show it as skipped.

        A task does not wait for a queued one, which can need the process in which it would wait.
        """
        if self.must_run_later:
            lock.on_conflict = "retry"  # for the history
        message, would_wait = self.message, self.waits and self.message.has_queue
        may_run_already = message.is_redelivered or message.is_resent or message.retries
        if may_run_already or would_wait:
            conflict = Conflict(self.call, lock.name)
            conflict.look()
            if may_run_already and conflict.is_with_running_itself:
                return conflict
            is_behind = would_wait and conflict.is_with_queued_tasks(lock.capacity)
            if is_behind and not self._may_take_over(lock, conflict):
                self.must_run_later = True
                return conflict
        self.slot = board.show(self.alias, lock.name, lock.timeout, lock.at_least_for)
        return super()._acquire_or_conflict(lock)

    def _settle(self, conflict: Conflict) -> Any:
        message, options = self.message, self.options
        may_retry = options.on_conflict == "retry" and (
            options.max_retries is None or message.conflicts < options.max_retries
        )
        must_run_later = self.must_run_later and conflict.name == self.name
        if self.can_run_later and (may_retry or must_run_later or conflict.is_with_itself):
            self._send_again(conflict)
        result = super()._settle(conflict)
        record_skip(self.task)
        return result

    def _send_again(self, conflict: Conflict) -> NoReturn:
        message, task = self.message, self.task
        countdown: Any = self.options.countdown
        if countdown is None:
            countdown = back_off(message.conflicts)
        # An execution that still runs has sent a fresh retry, which has not begun before.
        is_fresh = message.retries and not message.is_redelivered
        has_begun = message.may_have_run or (conflict.is_with_itself and not is_fresh)
        headers = {CONFLICTS: message.conflicts + 1, AGAIN: has_begun}
        # Not task.retry(): that counts against the task's own max_retries.
        signature = task.signature_from_request(task.request, countdown=countdown)
        signature.options["headers"] = {**message.headers, **headers}
        try:
            try:
                signature.apply_async()
            except ValueError:  # quorum queues of RabbitMQ count whole seconds, and refuse none
                if not 0 < countdown < 1:
                    raise
                signature.apply_async(countdown=1)
        except Exception as error:
            # A message that is not acknowledged yet returns to its queue. Of a message that is, a
            # failure remains the only trace.
            if task.acks_late:
                raise Reject(error, requeue=True) from error
            raise
        raise Retry(exc=conflict.error, when=countdown, sig=signature)

    def _is_terminated(self, error: BaseException) -> bool:
        return isinstance(error, SystemExit) and error.code in TERMINATED

    def _seconds_kept(self, lock: BaseLock, error: BaseException | None) -> float:
        if not self.options.holds_on_retry:
            return 0.0
        if returns_to_queue(self.task, error):
            return self.options.max_queue_seconds
        if not isinstance(error, Retry):  # a final result is stored next
            self.kept_metadata = {MAY_STORE_LATER: True}
        # With a limit, the message that the task sent before its end may run already.
        may_overlap = error is None and lock.capacity > 1
        return 0.0 if may_overlap else max(0, self.kept_until - clock.now())

    def _has_ended(self, state: str) -> bool:
        """Return whether an earlier execution of the message has ended with a state, if the result
        backend knows it."""
        has_ended, earlier = False, self.message.earlier_result
        with suppress(Exception):  # no id, no result backend, or it is unreachable
            result = earlier or self.task.AsyncResult(self.message.task_id or "")
            has_ended = result.state == state
            if earlier and has_ended:  # Celery has recorded STARTED since
                earlier.backend.store_result(
                    earlier.id, earlier.result, state, request=self.task.request
                )
        return has_ended


def back_off(conflicts: int) -> float:
    """Return the seconds to wait after a number of conflicts: 1, 2, 4 ... with jitter.

    It is at least 1, because quorum queues of RabbitMQ delay messages by whole seconds.
    """
    longest = min(MAX_BACK_OFF_SECONDS, 2.0 ** min(conflicts, 10))
    return max(1.0, longest * random.uniform(0.5, 1))  # noqa: S311  jitter is no secret


class _PublicPart:
    """The public attributes of a task, with another function to run."""

    def __init__(self, task: Task[..., Any], run: Callable[..., Any]) -> None:
        self._task, self.run = task, run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Celery marks there that a task has its retry wrapper
            raise AttributeError(name)
        return getattr(self._task, name)


def with_autoretry(task: Task[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` in Celery's own wrapper for ``autoretry_for``, if the task has that option.

    A lock that is kept for a retry stands outside such a wrapper, so that it sees the `Retry`
    that was raised, instead of predicting it. The wrapper around the lock retries the errors of
    the lock itself. It passes a `Retry` on.
    """
    retrying: Any = _PublicPart(task, run)
    add_autoretry_behaviour(retrying)
    return cast("Callable[..., Any]", retrying.run)
