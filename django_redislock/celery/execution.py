"""The execution of a Celery task under its lock, from `task_prerun` to `task_postrun`.

If a task ends without running, because it was revoked, has expired, or failed before its function
was called, the process that learns of it releases the queue lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from celery import Task
from celery.app.autoretry import add_autoretry_behaviour
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_failure, task_postrun, task_prerun, task_revoked
from celery.states import RETRY, REVOKED, SUCCESS

from django_redislock.introspection import reject_deferred_result
from django_redislock.lock_types import BaseLock
from django_redislock.tasks.execution import Execution, runs_under
from django_redislock.tasks.single import Call

from .conflict import TaskConflict
from .message import (
    Message,
    TaskCall,
    call_of,
    seconds_until,
    single_of,
    under_way,
)

logger = logging.getLogger("django_redislock")


@task_prerun.connect
def begin(sender: Any, **_: Any) -> None:
    if single := single_of(sender):
        message = Message(single, sender, sender.request)
        under_way.push(message)
        # Celery records next that the task has started, and a result backend can forget the rest.
        may_have_ended = message.may_have_run or message.is_replaceable
        if may_have_ended and sender.track_started and message.task_id:
            result = sender.AsyncResult(message.task_id)
            with suppress(Exception):  # no result backend, or it is unreachable
                message.earlier_result = result if result.ready() else None


@task_postrun.connect
def end(sender: Any, retval: Any, state: str, **_: Any) -> None:
    message = under_way.pop(lambda each: each.task is sender)
    if message is None or message.has_started or state == RETRY:
        return
    # The task's class did not call the function, or Celery could not.
    if runs_again_in(message, retval) is None:
        _release_queue_lock_of(message)


@task_revoked.connect
def revoked(sender: Any, request: Any, **_: Any) -> None:
    release_queue_lock(sender, request)


@task_failure.connect
def failed(sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
    request = sender.request
    if str(request.id) != task_id:  # Celery reports a hard time limit without its request
        request = Context(id=task_id, args=args, kwargs=kwargs)
    release_queue_lock(sender, request)


def release_queue_lock(task: Any, request: Any, headers: dict[str, Any] | None = None) -> None:
    """Release what the message of a request still holds; see `Message` for the arguments."""
    if single := single_of(task):
        _release_queue_lock_of(Message(single, task, request, headers))


def _release_queue_lock_of(message: Message) -> None:
    single, options = message.single, message.single.options
    if not options.may_have_queue_lock:
        return
    call = call_of(single, message.task, message.task_id, message.args, message.kwargs)

    def names() -> set[str]:
        """Return the names of all locks that the message can hold."""
        taken = message.queue_lock if options.locking.when_sent else None
        if taken and not (options.locking.separate and options.holds_on_retry):
            return {taken}
        name = single.name_of(call)
        return {name, taken or single.queue_lock_name(name)}

    single.release_queue_locks(call, names)


class TaskExecution(Execution):
    """One call of the function of a Celery task."""

    call: TaskCall
    conflict_class = TaskConflict

    def run(self) -> Any:
        """Run the function under its locks, or do what `on_conflict` says."""
        message = self.call.message
        message.has_started = message.is_running = True
        try:
            return self._run()
        finally:
            message.is_running = False

    def _run(self) -> Any:
        locking, message = self.single.options.locking, self.call.message
        name = self.single.name_of(self.call)
        body, queue_lock_name = self._call_function, name
        if locking.when_sent:
            queue_lock_name = self.single.queue_lock_name(name)
            if message.is_replaceable and self._has_ended(REVOKED):
                logger.info("Replaced task ignored: task=%s", self.call)
                raise Ignore("A newer task has replaced this one")
            # The arguments can have changed since it was sent.
            if message.queue_lock and message.queue_lock != queue_lock_name:
                self._release_queue_lock(self.single.lock(message.queue_lock))
            if message.is_duplicate:
                return TaskConflict(self.call, queue_lock_name).end_duplicate()
            if not locking.while_running:
                return self._run_after_queue(name)
        conflict = TaskConflict(self.call, name, runs_under(self.alias, name))
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

    @property
    def _may_have_queue_lock(self) -> bool:
        options = self.single.options
        message = self.call.message  # the option can have changed since it was sent
        return bool(
            options.may_have_queue_lock or message.queue_lock is not None or message.retries
        )

    def _meets_itself(self, lock: BaseLock, conflict: TaskConflict) -> bool:  # type: ignore[override]
        """Return whether an earlier execution of the same message still runs.

        With `limit` both would run. With ``"wait"`` this one would run before the result of the
        other is known. With ``"skip"`` the history would show it as skipped.
        """
        message = self.call.message
        may_overlap = lock.capacity > 1 or self.single.options.on_conflict == "wait"
        if message.is_redelivered or message.is_resent or (message.retries and not may_overlap):
            return conflict.look_for_itself()
        return False

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
        message, sent = self.call.message, getattr(error, "sig", None)
        if sent is None or (message.args, message.kwargs) == (tuple(sent.args), dict(sent.kwargs)):
            return self.call
        return call_of(self.single, message.task, message.task_id, sent.args, sent.kwargs)

    def _has_ended(self, state: str) -> bool:
        """Return whether an earlier execution of the message has ended with a state, if the result
        backend knows it."""
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
