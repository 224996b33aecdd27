"""The call of the function of a Celery task under its lock, with what needs a queue."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NoReturn, cast

from celery import Task, exceptions
from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, Reject
from celery.states import REVOKED, SUCCESS
from celery.utils.time import maybe_make_aware
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.engine.outages import is_outage
from django_redislock.identity import complete_id
from django_redislock.introspection import reject_deferred_result
from django_redislock.lock_types import BaseLock
from django_redislock.snapshots import Holding
from django_redislock.tasks.conflict import Conflict
from django_redislock.tasks.deliveries import (
    MAY_HAVE_BEGUN,
    MAY_RUN_ALREADY,
    Action,
    Delivery,
    Holder,
)
from django_redislock.tasks.execution import Execution, runs_under
from django_redislock.tasks.policies import Retry
from django_redislock.tasks.single import TaskCall

from . import board
from .message import (
    AGAIN,
    ARRIVAL,
    CONFLICTS,
    DUPLICATE,
    MAX_ARRIVAL,
    Message,
    call_of,
    number,
    queue_seconds,
    returns_to_queue,
    single_of,
)
from .ordered import send_due
from .results import STORES_LATER, ended_queue_lock
from .skipped import record_skip

logger = logging.getLogger("django_redislock")

TERMINATED = {number - 256 for number in signal.valid_signals()}
"""The codes of the `SystemExit` with which a signal ends a pool process of Celery."""


class CeleryExecution(Execution):
    """One call of the function of a Celery task."""

    slot = board.Slot()
    """The slot of its lock on the board."""

    took_over_queue_lock = False
    """Whether the task still had the queue lock that it got before it was sent."""

    kept_until = 0.0
    """Until when the lock must be kept for a message that the task has sent in its own place."""

    def __init__(self, call: TaskCall, message: Message) -> None:
        message.is_started = True  # also if the lock has no valid name
        super().__init__(call)
        self.message = message
        self.task = message.task
        self.claim = message.claim
        self.conflicts = message.conflicts
        # A call inside the instance that holds the lock would wait for itself.
        is_inside = runs_under(self.alias, self.name)
        self.delivery = Delivery.CALLED if is_inside else message.delivery

    def run(self) -> Any:
        """Run the function under its locks, or do what `on_conflict` says."""
        message = self.message
        message.execution = self
        try:
            if message.delivery is Delivery.DUPLICATE:
                holder_id = complete_id(str(message.headers[DUPLICATE]))
                return self._settle(Conflict(self.call, self.queue_lock_name, holder_id))
            return super().run()
        finally:
            self.slot.leave()
            message.execution = None
            if self.options.policy.stores:
                send_due(self.task.app, self.single.manager)

    def keep_lock_for(self, task_name: str, body: Any, headers: Any) -> None:
        """Keep the lock for a message that the task has sent in its own place, if it needs it."""
        task: Any = self.task.app.tasks.get(task_name)
        single = single_of(task)
        call = self.call
        if single is None or not self.options.holds_on_retry:
            return
        try:
            args, kwargs = tuple(body[0]), dict(body[1])
            # With other arguments than the message has, the name follows from them.
            sent_before = self.task, self.message.args, self.message.kwargs
            if (task, args, kwargs) != sent_before:
                call = call_of(single, task, self.message.task_id, args, kwargs)
            if call.single.name_of(call) == self.name:
                times = headers.get("eta"), headers.get("expires")
                seconds = queue_seconds(self.single, self.task.app, *times)
                self.kept_until = clock.now() + seconds
        except Exception:  # it must not hide what the task did
            logger.exception("Cannot determine whether the task runs again: task=%s", call)

    def _ended_queue_lock(self, conflict: Conflict) -> Holding | None:
        return ended_queue_lock(self.task, conflict.queue_locks)

    def _may_take_over(self, lock: BaseLock, conflict: Conflict) -> bool:
        """Let the next acquisition take over the queue lock of a task that has ended, and return
        whether there is one."""
        ended = self._ended_queue_lock(conflict)
        if ended:
            lock.predecessor = ended.token
        return ended is not None

    def _prepare_queue_lock(self) -> None:
        message, name = self.message, self.queue_lock_name
        if self._is_ignored_after(REVOKED):
            logger.info("Replaced task ignored: task=%s", self.call)
            raise Ignore("A newer task has replaced this one")
        # The arguments can have changed since it was sent.
        if message.queue_lock and message.queue_lock != name:
            self.single.release_queue_lock(message.queue_lock, self.call)

    def _call_function(self) -> Any:
        call, function = self.call, self.single.function
        # The second copy of a stored message finds its queue lock taken over by the first one. If
        # it has to return to the queue, it is marked as sent again.
        is_copy_possible = self.delivery in MAY_HAVE_BEGUN or not self.took_over_queue_lock
        if is_copy_possible and self._is_ignored_after(SUCCESS):
            logger.info("Redelivered task ignored, it has already succeeded: task=%s", call)
            raise Ignore("The task has already succeeded")
        # An eager retry runs at once, so it must come after the release.
        has_autoretry = bool(getattr(self.task, "autoretry_for", ()))
        if has_autoretry and self.options.holds_on_retry and not self.task.request.is_eager:
            function = with_autoretry(self.task, function)
        return reject_deferred_result(self.single.function, function(*call.args, **call.kwargs))

    def _acquire_or_conflict(self, lock: BaseLock) -> Conflict | None:
        """Acquire the lock, unless the task has to run later."""
        if self._action(Holder.OTHER, lock.name) is Action.RUN_LATER:
            lock.on_conflict = Retry.recorded_as  # for the history: it is not skipped
        if conflict := self._conflict_before(lock):
            return conflict
        self.slot = board.show(self.alias, lock.name, lock.timeout, lock.at_least_for)
        try:
            conflict = super()._acquire_or_conflict(lock)
            if conflict and self._may_take_over(lock, conflict):
                conflict = super()._acquire_or_conflict(lock)
        except RedisError as error:
            # A task that has waited in order must not fail because Redis restarts.
            if not (self.options.policy.stores and self.can_run_later and is_outage(error)):
                raise
            return Conflict(self.call, lock.name)
        self.took_over_queue_lock = lock.took_over
        return conflict

    def _conflict_before(self, lock: BaseLock) -> Conflict | None:
        """Return the conflict of a task that must not even try to acquire the lock.

        An earlier execution of the same message may still run. With `limit` both would run, and
        with ``"wait"`` this one would run before the result of the other is known.

        A task does not wait for a queued one, which can need the process in which it would wait.
        """
        may_run_already = self.delivery in MAY_RUN_ALREADY or self.options.policy.stores
        would_run_twice = may_run_already and lock.capacity > 1
        would_wait = self._waits and self.can_run_later
        if not (would_run_twice or would_wait):
            return None
        conflict = Conflict(self.call, lock.name)
        conflict.look()
        if conflict.is_with_running_itself:
            return conflict
        is_behind = would_wait and conflict.is_with_queued_tasks(lock.capacity)
        if is_behind and not self._may_take_over(lock, conflict):
            conflict.holder = Holder.QUEUED
            return conflict
        return None

    def skip(self, conflict: Conflict) -> None:
        """Complete the task without running it."""
        super().skip(conflict)
        record_skip(self.task)

    def run_later(self, conflict: Conflict) -> NoReturn:
        """Send the message again, to run after `countdown`."""
        message, task = self.message, self.task
        countdown: Any = self.options.policy.seconds_until_retry(message.conflicts)
        # An execution that still runs has sent a retry, which has not begun before.
        is_with_other_delivery = (
            conflict.holder is Holder.ITSELF and self.delivery is not Delivery.RETRY
        )
        # A stored message that does not get its lock can be the second copy of one that has run.
        is_copy = self.delivery is Delivery.FIRST and self.options.policy.stores
        has_begun = self.delivery in MAY_HAVE_BEGUN or is_with_other_delivery or is_copy
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
        raise exceptions.Retry(exc=conflict.error, when=countdown, sig=signature)

    def _is_terminated(self, error: BaseException) -> bool:
        return isinstance(error, SystemExit) and error.code in TERMINATED

    def _seconds_kept(self, lock: BaseLock, error: BaseException | None) -> float:
        if not self.options.holds_on_retry:
            return 0.0
        if returns_to_queue(self.task, error):
            return self.options.max_queue_seconds
        if not isinstance(error, exceptions.Retry):  # a final result is stored next
            self.kept_metadata = {STORES_LATER: True}
        # With a limit, the message that the task sent before its end may run already.
        may_overlap = error is None and lock.capacity > 1
        return 0.0 if may_overlap else max(0, self.kept_until - clock.now())

    def _is_ignored_after(self, state: str) -> bool:
        """Return whether the message must not run, because an earlier execution of it has ended
        with a state, and the result backend knows that."""
        if state not in self.message.ignored_after:
            return False
        has_ended = False
        with suppress(Exception):  # no id, no result backend, or it is unreachable
            result = self.message.earlier_result or self.task.AsyncResult(self.message.task_id)
            has_ended = result.state == state and self._is_result_of_message(result)
            if has_ended:  # Celery can have recorded STARTED since
                result.backend.store_result(
                    result.id, result.result, state, request=self.task.request
                )
        return has_ended

    def _is_result_of_message(self, result: Any) -> bool:
        """Return whether a result is later than the arrival of a stored message.

        If it is not, it belongs to an earlier message with the same id.
        """
        arrival = number(self.message.headers.get(ARRIVAL), MAX_ARRIVAL)
        if not arrival:
            return True
        ended: datetime = maybe_make_aware(result.date_done)
        return ended >= datetime.fromtimestamp(arrival / 1e6, UTC)


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
