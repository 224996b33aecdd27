"""One execution of a Celery task under its lock."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, Reject, Retry
from celery.states import REVOKED, SUCCESS

from django_redislock.introspection import reject_deferred_result
from django_redislock.tasks.call import Call, runs_under
from django_redislock.tasks.execution import Execution

from .call import TaskCall, call_of
from .conflict import TaskConflict
from .message import Message, seconds_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from django_redislock.lock_types import BaseLock, QueueLock

logger = logging.getLogger("django_redislock")


class TaskExecution(Execution):
    """One call of the function of a Celery task."""

    call: TaskCall

    def run(self) -> Any:
        """Run the function under its locks, or do what `on_conflict` says."""
        message = self.call.message
        message.has_started = message.is_running = True
        try:
            return self._run()
        finally:
            message.is_running = False

    def _run(self) -> Any:
        locking, message, name = self.single.options.locking, self.call.message, self._name
        body, queue_lock_name = self._call_function, name
        if locking.when_sent:
            queue_lock_name = self.single.queue_lock_name(name)
            if message.queue_lock:
                self._refuse_if_replaced()
                if message.queue_lock != queue_lock_name:  # the arguments have changed since
                    self._release_queue_lock(self.single.lock(message.queue_lock))
            if message.is_duplicate:
                return self._conflict(queue_lock_name).end_duplicate()
            if not locking.while_running:
                return self._run_after_queue(name)
        conflict = self._conflict(name)
        conflict.must_run = self._must_run
        if locking.separate:
            conflict.must_run = True  # the queued task runs after the running one
            body = partial(self._run_after_queue, queue_lock_name)
        return self._run_under_lock(conflict, body)

    @property
    def _must_run(self) -> bool:
        """Whether the task had a queue lock and was not replaced, or began before and its process
        was killed. It then runs later instead of being skipped."""
        message, options = self.call.message, self.single.options
        if options.locking.when_sent and options.on_conflict != "replace" and message.queue_lock:
            return True
        return message.may_have_run

    def _call_function(self) -> Any:
        call, function = self.call, self.single.function
        if call.message.may_have_run and self._has_ended(SUCCESS):
            logger.info("Redelivered task ignored, it has already succeeded: task=%s", call)
            raise Ignore("The task has already succeeded")
        # An eager retry runs at once, so it must come after the release.
        if self.single.options.holds_on_retry and call.message.has_queue:
            function = with_autoretry(call.task, function)
        return reject_deferred_result(self.single.function, function(*call.args, **call.kwargs))

    # The queue lock

    def _run_after_queue(self, name: str) -> Any:
        """Release the queue lock and call the function."""
        if self._must_run:
            self._end_queue(name)
        elif conflict := self._after_queue(name):
            return conflict.settle()
        return self._call_function()

    def _queue_lock(self, lock: BaseLock) -> QueueLock:
        return self.single.queue_lock(lock, self.call, expected=self.call.message.is_expected)

    @property
    def _may_have_queue_lock(self) -> bool:
        options = self.single.options
        return options.may_have_queue_lock or self.call.message.queue_lock is not None

    def _conflict(self, name: str) -> TaskConflict:
        return TaskConflict(self.call, name, runs_under(self.single.manager.alias, name))

    def _meets_itself(self, lock: BaseLock, conflict: TaskConflict) -> bool:  # type: ignore[override]
        """Return whether an earlier execution of the same message still runs.

        With `limit` both would run. With ``"wait"`` this one would run before the result of the
        other is known. With ``"skip"`` the history would show it as skipped.
        """
        message = self.call.message
        may_be_early = message.is_redelivered or message.is_resent or message.retries
        if not may_be_early:
            return False
        may_overlap = lock.capacity > 1 or self.single.options.on_conflict == "wait"
        return not (message.is_fresh_retry and may_overlap) and conflict.look_for_itself()

    # Release

    def _seconds_kept(self, lock: BaseLock, error: BaseException | None) -> float:
        options, message = self.single.options, self.call.message
        if not options.holds_on_retry:
            return 0.0
        if error is None:
            # With a limit, the message that the task sent again may run already.
            return message.resent_for_seconds if lock.capacity == 1 else 0.0
        try:
            delay = runs_again_in(message, error)
            if delay is None or self.single.name_of(self._next_call(error)) != lock.name:
                return 0.0
        except Exception:  # it must not hide what the task raised
            logger.exception("Cannot determine whether the task runs again: task=%s", self.call)
            return 0.0
        return delay + options.max_queue_seconds

    def _next_call(self, error: BaseException) -> Call:
        """Return the next execution's call. It can have been sent with other arguments."""
        call, sent = self.call, getattr(error, "sig", None)
        message = call.message
        if sent is None or (message.args, message.kwargs) == (tuple(sent.args), dict(sent.kwargs)):
            return call
        return call_of(self.single, call.task, call.task_id, sent.args, sent.kwargs)

    # Earlier executions of the same message

    def _refuse_if_replaced(self) -> None:
        if is_replaceable(self.call.message) and self._has_ended(REVOKED):
            logger.info("Replaced task ignored: task=%s", self.call)
            raise Ignore("A newer task has replaced this one")

    def _has_ended(self, state: str) -> bool:
        """Return whether the message has ended with a state, if the result backend knows it."""
        message = self.call.message
        if not message.task_id:
            return False
        ended = message.earlier_result
        if ended is not None and ended.state == state:
            with suppress(Exception):  # Celery has recorded STARTED since, or cannot now
                ended.backend.store_result(
                    ended.id, ended.result, ended.state, request=message.task.request
                )
            return True
        try:
            return bool(message.task.AsyncResult(message.task_id).state == state)
        except Exception:  # no result backend, or it is unreachable
            return False


def runs_again_in(message: Message, error: object) -> float | None:
    """Return the seconds until a task that ended with `error` runs again. None if never."""
    if isinstance(error, Retry):  # the retry was sent before it was raised
        if not message.has_queue:
            return None
        return max(0.0, seconds_until(error.when, message.task.app) or 0.0)
    if isinstance(error, Reject):
        # A message that was acknowledged before the task ran cannot return to its queue.
        can_return = error.requeue and message.task.acks_late  # type: ignore[attr-defined]
        return 0.0 if can_return else None
    if isinstance(error, Ignore):  # of ``self.replace()``, by the same task
        return 0.0 if message.resent_for_seconds else None
    return None


def is_replaceable(message: Message) -> bool:
    """Return whether a newer task can have replaced the message."""
    return message.single.options.on_conflict == "replace" and message.queue_lock is not None


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
