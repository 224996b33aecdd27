"""One execution of a single-instance function under its lock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from celery.states import REVOKED, SUCCESS
from celery.utils.time import maybe_iso8601, maybe_make_aware
from redis.exceptions import RedisError

from django_redislock.exceptions import LockError, LockNotOwnedError
from django_redislock.introspection import reject_deferred_result
from django_redislock.text import error_text

from .abort import Abort
from .call import Call, Delivery, held, runs_under
from .conflict import MAX_LOOKS, Conflict, end_duplicate, settle
from .single import Single, queue_lock_token, with_autoretry

if TYPE_CHECKING:
    from celery import Task

    from django_redislock.lock_types import BaseLock

logger = logging.getLogger("django_redislock")


@dataclass(slots=True)
class Execution:
    """One call of a single-instance function."""

    single: Single
    function: Callable[..., Any]
    call: Call
    alias: str = field(init=False)

    def __post_init__(self) -> None:
        self.alias = self.single.manager.alias

    def run(self) -> Any:
        """Run the function under its lock, or do what `on_conflict` says."""
        delivery = self.call.delivery
        if delivery is None:
            return self._run()
        delivery.has_started = delivery.is_running = True
        try:
            return self._run()
        finally:
            delivery.is_running = False

    async def arun(self) -> Any:
        """Async version of `run()`. No queue delivers the call of a coroutine function."""
        name = self.single.name_of(self.call)
        lock = self.single.lock(name, self.call, self.single.options.on_lost)
        if conflict := await self._arefused(lock):
            return settle(conflict)
        try:
            with held(self.alias, lock):
                result = await self.function(*self.call.args, **self.call.kwargs)
            return reject_deferred_result(self.function, result)
        finally:
            with self._release_errors_logged(name):
                await lock.arelease()

    def _run(self) -> Any:
        locking, message = self.single.options.locking, self.call.message
        name = self.single.name_of(self.call)
        queue_lock_name = self.single.queue_lock_name(name)
        if locking.when_sent and message.queue_lock:
            self._refuse_if_replaced()
            if message.queue_lock != queue_lock_name:  # the arguments have changed since
                self._release_queue_lock(self.single.lock(message.queue_lock))
        if message.is_duplicate:
            return end_duplicate(self._conflict(queue_lock_name))
        if not locking.while_running:
            return self._run_after_queue(name)
        if not locking.separate:
            return self._run_under_lock(name, self._call_function, must_run=self._must_run)
        # The queued task runs after the running one.
        after_queue = partial(self._run_after_queue, queue_lock_name)
        return self._run_under_lock(name, after_queue, must_run=True)

    @property
    def _must_run(self) -> bool:
        """Whether the task had a queue lock and was not replaced, or began before and its process
        was killed. It then runs later instead of being skipped."""
        options = self.single.options
        # Another task can pass its headers on to a task that takes no queue lock.
        keeps_queue_lock = options.locking.when_sent and options.on_conflict != "replace"
        return self.call.may_have_run or bool(keeps_queue_lock and self.call.message.queue_lock)

    def _call_function(self) -> Any:
        if self.call.may_have_run and self._has_ended(SUCCESS):
            logger.info("Redelivered task ignored, it has already succeeded: task=%s", self.call)
            raise Ignore("The task has already succeeded")
        function, task = self.function, self.call.task
        # An eager retry runs at once, so it must come after the release.
        if task is not None and self.single.options.holds_on_retry and self.call.message.has_queue:
            function = with_autoretry(task, function)
        result = function(*self.call.args, **self.call.kwargs)
        return reject_deferred_result(self.function, result)

    # The queue lock

    def _run_after_queue(self, name: str) -> Any:
        """Release the queue lock and call the function."""
        if not (self._end_queue(name) or self._must_run):
            conflict = self._conflict(name)
            if conflict.look():
                return settle(conflict)
        return self._call_function()

    def _end_queue(self, name: str) -> bool:
        """Release the queue lock, and return whether the message held it."""
        lock, options = self.single.lock(name, self.call), self.single.options
        if not options.at_least_for or options.locking.separate:
            return self._release_queue_lock(lock)
        # The cooldown counts from the start of the task.
        lock.predecessor = self._queue_lock_token
        acquired = self._acquires(lock)
        if acquired:
            lock.release()
        return acquired

    def _release_queue_lock(self, lock: BaseLock) -> bool:
        return bool(self.call.task_id) and self.single.queue_lock(lock, self.call).release()

    @property
    def _queue_lock_token(self) -> str:
        return queue_lock_token(self.call.task_id) if self.call.task_id else ""

    # The lock

    def _run_under_lock(self, name: str, body: Callable[[], Any], *, must_run: bool) -> Any:
        on_lost = self.single.options.on_lost
        abort = Abort() if on_lost == "abort" else None
        lock = self.single.lock(name, self.call, abort or on_lost)
        kept = 0.0
        # A soft time limit can interrupt between any two lines.
        try:
            if conflict := self._refused(lock, must_run=must_run):
                return settle(conflict)
            with held(self.alias, lock), abort or nullcontext():
                if abort:
                    lock.assert_held()  # a loss before this line was not reported to `abort`
                result = body()
            # With a limit, the message that the task sent again may run already.
            if self.call.delivery and self.single.options.holds_on_retry and lock.capacity == 1:
                kept = self.call.delivery.resent_for_seconds
            return result
        except BaseException as error:
            kept = self._seconds_kept(name, error)
            raise
        finally:
            if lock.token is not None:
                self._release(lock, kept)

    def _refused(self, lock: BaseLock, *, must_run: bool) -> Conflict | None:
        """Acquire the lock, or return the conflict."""
        message = self.call.message
        conflict = self._conflict(lock.name, must_run=must_run)
        runs_again = message.is_redelivered or message.is_resent or message.retries
        if runs_again and self._meets_itself(conflict, lock.capacity):
            return conflict
        lock.predecessor = self._queue_lock_token
        lock.on_conflict = conflict.policy  # for the history
        blocking = self.single.options.on_conflict == "wait" and not conflict.inside
        if self._acquires(lock, blocking=blocking):
            return None
        for _ in range(MAX_LOOKS):
            if conflict.look():
                break
            if self._acquires(lock):  # it was released in the meantime
                return None
        return conflict

    async def _arefused(self, lock: BaseLock) -> Conflict | None:
        conflict = self._conflict(lock.name)
        lock.on_conflict = conflict.policy
        blocking = self.single.options.on_conflict == "wait" and not conflict.inside
        if await lock.aacquire(blocking=blocking):
            return None
        for _ in range(MAX_LOOKS):
            if await conflict.alook():
                break
            if await lock.aacquire(blocking=False):
                return None
        return conflict

    def _meets_itself(self, conflict: Conflict, capacity: int) -> bool:
        """Return whether an earlier execution of the same message still runs.

        With `limit` both would run. With ``"wait"`` this one would run before the result of the
        other is known. With ``"skip"`` the history would show it as skipped.
        """
        message = self.call.message
        may_overlap = capacity > 1 or self.single.options.on_conflict == "wait"
        if not (message.is_redelivered or message.is_resent) and may_overlap:
            return False
        return conflict.look_for_itself()

    def _acquires(self, lock: BaseLock, *, blocking: bool = False) -> bool:
        """Acquire a lock.

        If a lock of another type has the name, as before the task's `limit` was added or removed,
        do not wait for it. If it is the queue lock of this message, release it.
        """
        try:
            return lock.acquire(blocking=blocking)
        except LockError as error:
            if not error.held_as:
                raise
            return self._release_queue_lock(lock) and self._acquires(lock, blocking=blocking)

    def _conflict(self, name: str, *, must_run: bool = False) -> Conflict:
        inside = runs_under(self.alias, name)
        return Conflict(self.call, name, self.single, inside=inside, must_run=must_run)

    # Release

    def _seconds_kept(self, name: str, error: BaseException) -> float:
        """Return for how many seconds the lock is kept for the task's next execution."""
        options, delivery = self.single.options, self.call.delivery
        if delivery is None or not options.holds_on_retry:
            return 0.0
        try:
            delay = runs_again_in(delivery, error)
            if delay is None or self.single.name_of(self._next_call(error)) != name:
                return 0.0
        except Exception:  # it must not hide what the task raised
            logger.exception("Cannot determine whether the task runs again: task=%s", self.call)
            return 0.0
        return delay + options.max_queue_seconds

    def _next_call(self, error: BaseException) -> Call:
        """Return the next execution's call. It can have been sent with other arguments."""
        call, sent = self.call, getattr(error, "sig", None)
        if sent is None or call.task is None or call.message.has_arguments_of(sent):
            return call
        return self.single.call(call.task, call.task_id or "", sent.args, sent.kwargs)

    def _release(self, lock: BaseLock, kept: float) -> None:
        """Release the lock, or pass it on to the queue lock of the task's next execution."""
        with self._release_errors_logged(lock.name):
            if kept and self.call.task_id:
                self.single.queue_lock(lock, self.call).inherit(kept)
            else:
                lock.release()

    @contextmanager
    def _release_errors_logged(self, name: str) -> Iterator[None]:
        """Log errors of a release. They must not hide what the function did."""
        try:
            yield
        except LockNotOwnedError:
            logger.error(
                "Lock lost while the task ran, another instance may have run: task=%s name=%r",
                *(self.call, name),
            )
        except RedisError as error:
            logger.warning(
                "Lock not released, will retry until it expires: task=%s name=%r error=%s",
                *(self.call, name, error_text(error)),
            )

    # Earlier executions of the same message

    def _refuse_if_replaced(self) -> None:
        if self.is_replaceable and self._has_ended(REVOKED):
            logger.info("Replaced task ignored: task=%s", self.call)
            raise Ignore("A newer task has replaced this one")

    @property
    def is_replaceable(self) -> bool:
        replaces = self.single.options.on_conflict == "replace"
        return replaces and self.call.message.queue_lock is not None

    def _has_ended(self, state: str) -> bool:
        """Return whether the message has ended with a state, if the result backend knows it."""
        delivery, task_id = self.call.delivery, self.call.task_id
        if delivery is None or not task_id:
            return False
        ended = delivery.earlier_result
        if ended is not None and ended.state == state:
            with suppress(Exception):  # Celery has recorded STARTED since, or cannot now
                ended.backend.store_result(
                    ended.id, ended.result, ended.state, request=delivery.task.request
                )
            return True
        try:
            return bool(delivery.task.AsyncResult(task_id).state == state)
        except Exception:  # no result backend, or it is unreachable
            return False


def runs_again_in(delivery: Delivery, error: object) -> float | None:
    """Return the seconds until a task that ended with `error` runs again. None if never."""
    if isinstance(error, Retry):  # the retry was sent before it was raised
        return _seconds_until(error.when, delivery.task) if delivery.message.has_queue else None
    if isinstance(error, Reject):
        # A message that was acknowledged before the task ran cannot return to its queue.
        can_return = error.requeue and delivery.task.acks_late  # type: ignore[attr-defined]
        return 0.0 if can_return else None
    if isinstance(error, Ignore):  # of ``self.replace()``, by the same task
        return 0.0 if delivery.resent_for_seconds else None
    return None


def _seconds_until(when: Any, task: Task[..., Any]) -> float:
    if isinstance(when, datetime | str):
        moment: Any = maybe_iso8601(when)
        then = maybe_make_aware(moment, task.app.timezone)
        return max(0.0, (then - task.app.now()).total_seconds())
    return float(when or 0)


def look_back(single: Single, delivery: Delivery) -> None:
    """Note how the message ended before, as long as the result backend knows it.

    Celery records next that the task has started, and a result backend can forget the rest.
    """
    task, message = delivery.task, delivery.message
    if not task.track_started or not message.task_id:
        return
    call = Call(task.run, task, (), {}, message.task_id, delivery, message)
    if call.may_have_run or Execution(single, task.run, call).is_replaceable:
        result = task.AsyncResult(message.task_id)
        with suppress(Exception):  # no result backend, or it is unreachable
            delivery.earlier_result = result if result.ready() else None
