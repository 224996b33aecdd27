"""One execution of a single-instance function: after its place in the queue, under its lock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
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
from .conflict import LOOKS, Conflict, end_duplicate, settle
from .single import Single, place_token

if TYPE_CHECKING:
    from celery import Task
    from celery.result import AsyncResult

    from django_redislock.lock_types import BaseLock, QueueLock

logger = logging.getLogger("django_redislock")


@dataclass(frozen=True, slots=True)
class Execution:
    """One call of a function that runs as a single instance."""

    single: Single
    function: Callable[..., Any]
    call: Call

    def run(self) -> Any:
        """Run the function, or do what is to be done where it may not run."""
        delivery = self.call.delivery
        if delivery is None:
            return self._run()
        delivery.has_started = delivery.is_running = True
        try:
            return self._run()
        finally:
            delivery.is_running = False

    def _run(self) -> Any:
        how, name = self.single.options.how, self.single.name_of(self.call)
        queue_lock_name = self.single.place_name(name)
        if how.place:
            self._refuse_if_replaced()
            self._leave_place_but(queue_lock_name)
        if self.call.message.is_duplicate:
            return end_duplicate(self._conflict(queue_lock_name))
        if not how.lock:
            return self._after_queue(name)
        if not how.apart:
            return self._under_lock(name, self._call, owed=self._is_owed)
        # Whoever is queued has its turn when the running one ends.
        after_queue = partial(self._after_queue, queue_lock_name)
        return self._under_lock(name, after_queue, owed=True)

    def _call(self) -> Any:
        self._refuse_to_repeat()
        return reject_deferred_result(
            self.function, self.function(*self.call.args, **self.call.kwargs)
        )

    @property
    def _is_owed(self) -> bool:
        """Whether it is not to give way to another: it had a place, and was not replaced, or it
        had begun before, and its process was killed."""
        options = self.single.options
        # Another task may pass its headers on to one that takes no place.
        keeps_place = options.how.place and options.on_conflict != "replace"
        had_place = keeps_place and self.call.message.queue_lock is not None
        return had_place or self.call.may_have_run

    def _leave_place_but(self, name: str) -> None:
        """Leave the message's place if it has another name than that: the arguments came as
        others than they were when it was taken."""
        taken = self.call.message.queue_lock
        if taken and taken != name and (place := self._place(self.single.lock(taken))):
            place.release()

    def _after_queue(self, name: str) -> Any:
        conflict = self._conflict(name)
        if not (self._end_queue(name) or self._is_owed) and conflict.look():
            return settle(conflict)
        return self._call()

    def _end_queue(self, name: str) -> bool:
        """Give the place back as the function begins, and say whether it was had."""
        lock, how = self.single.lock(name), self.single.options.how
        if self.single.options.at_least_for and not how.apart:
            return self._acquire_for_now(lock)  # so that the least time counts from here
        place = self._place(lock)
        return place is not None and place.release()

    def _acquire_for_now(self, lock: BaseLock) -> bool:
        lock.predecessor = self._own_place
        held = self._acquires(lock)
        if held:
            lock.release()
        return held

    def _acquires(self, lock: BaseLock, *, blocking: bool = False) -> bool:
        """Acquire it. What is held as a lock of another kind, as before the task's `limit` was
        given or taken away, is not waited for; and its own place of that kind is left."""
        try:
            return lock.acquire(blocking=blocking)
        except LockError as error:
            if not error.held_as:
                raise
            place = self._place(lock)
            was_its_own = place is not None and place.release()
            return was_its_own and self._acquires(lock, blocking=blocking)

    @property
    def _own_place(self) -> str:
        """The token of its message's place, if there is one."""
        return place_token(self.call.task_id) if self.call.task_id else ""

    def _under_lock(self, name: str, body: Callable[[], Any], *, owed: bool) -> Any:
        on_lost = self.single.options.on_lost
        abort = Abort() if on_lost == "abort" else None
        lock = self.single.lock(name, abort or on_lost)
        stays = 0.0
        # Inside the try, for a soft time limit may strike between any two lines.
        try:
            if conflict := self._refused(lock, owed=owed):
                return settle(conflict)
            with held(self.single.manager.alias, lock), abort or nullcontext():
                if abort:
                    lock.assert_held()  # from here on it strikes
                result = body()
            stays = self._stays_behind
            return result
        except BaseException as error:
            stays = self._stays(error)
            if stays and not self._comes_again_as(name, error):
                stays = 0.0
            raise
        finally:
            if lock.token is not None:
                self._let_go(lock, stays)

    def _refuse_to_repeat(self) -> None:
        """Raise Celery's `Ignore` where an earlier execution of the message has done the work, as
        far as the result backend knows."""
        if self.call.may_have_run and self._has_ended(SUCCESS):
            logger.info("Redelivered task ignored, it has already succeeded: task=%s", self.call)
            raise Ignore("The task has already succeeded")

    def _refuse_if_replaced(self) -> None:
        """Raise Celery's `Ignore` where a newer message took its place, as far as the result
        backend knows, and the worker did not hear that it was revoked."""
        if self.is_replaceable and self._has_ended(REVOKED):
            logger.info("Replaced task ignored: task=%s", self.call)
            raise Ignore("A newer task has replaced this one")

    @property
    def is_replaceable(self) -> bool:
        replaces = self.single.options.on_conflict == "replace"
        return replaces and self.call.message.queue_lock is not None

    def _has_ended(self, state: str) -> bool:
        """Whether its message has ended so before, as far as the result backend knows."""
        delivery, task_id = self.call.delivery, self.call.task_id
        if delivery is None or task_id is None:
            return False
        ended = delivery.earlier_result
        if ended is not None and ended.state == state:
            self._tell_again(ended)
            return True
        try:
            return bool(delivery.task.AsyncResult(task_id).state == state)
        except Exception:  # there is no result backend, or it is away
            return False

    def _tell_again(self, ended: AsyncResult[Any]) -> None:
        """Have the result backend know again what Celery has noted over."""
        request = self.call.task.request if self.call.task else None
        with suppress(Exception):  # it is unreachable
            ended.backend.store_result(ended.id, ended.result, ended.state, request=request)

    def _place(self, lock: BaseLock) -> QueueLock | None:
        """The place of the message for which it runs, if there is one."""
        if not self.call.task_id:
            return None
        return self.single.place(lock, self.call, expected=self.call.message.is_expected)

    def _conflict(self, name: str, *, owed: bool = False) -> Conflict:
        manager = self.single.manager
        inside = runs_under(manager.alias, name)
        return Conflict(self.call, name, self.single.options, manager, inside=inside, owed=owed)

    def _refused(self, lock: BaseLock, *, owed: bool) -> Conflict | None:
        """Acquire the lock; or tell with whom there is a conflict."""
        message = self.call.message
        runs_again = message.is_redelivered or message.is_resent or message.retries
        if runs_again and (conflict := self._with_own_past(lock.name)):
            return conflict
        lock.predecessor = self._own_place
        conflict = self._conflict(lock.name, owed=owed)
        lock.on_conflict = conflict.policy  # the history has it of a refusal
        if self._acquires(lock, blocking=self._waits(lock.name)):
            return None
        for _ in range(LOOKS):
            if conflict.look():
                break
            if self._acquires(lock):  # it has come free meanwhile
                return None
        return conflict

    def _with_own_past(self, name: str) -> Conflict | None:
        """Return the conflict with a running execution of the same message.

        With `limit` both would run. With ``"wait"`` this one would run before the result of the
        other is known. With ``"skip"`` the history would have it as skipped.
        """
        options, call = self.single.options, self.call
        would_run = (options.limit or 1) > 1 or options.on_conflict == "wait"
        may_run_yet = call.message.is_redelivered or call.message.is_resent
        if not (may_run_yet or (call.is_fresh_retry and not would_run)):
            return None
        conflict = self._conflict(name)
        return conflict if conflict.look_for_own_past() else None

    def _waits(self, name: str) -> bool:
        single = self.single
        return single.options.on_conflict == "wait" and not runs_under(single.manager.alias, name)

    @property
    def _stays_behind(self) -> float:
        """As _stays(), of one that returns, which may have sent itself again before."""
        delivery, options = self.call.delivery, self.single.options
        if delivery is None or not options.holds_on_retry or (options.limit or 1) > 1:
            return 0.0  # beside others it may have run already
        return delivery.resent_for_seconds

    def _stays(self, error: BaseException) -> float:
        """Seconds for which the lock is kept for the task's next execution, 0 if it is not."""
        options, delivery = self.single.options, self.call.delivery
        if delivery is None or not options.holds_on_retry:
            return 0
        try:
            delay = runs_again_in(delivery, error)
        except Exception:  # in what the task asked for; it must not hide what the task raised
            logger.exception("Cannot determine whether the task runs again: task=%s", self.call)
            return 0
        return 0 if delay is None else delay + options.longest_in_queue

    def _comes_again_as(self, name: str, error: BaseException) -> bool:
        """Whether the next execution has that name, too: it may have been sent other arguments."""
        try:
            return self.single.name_of(self._next(getattr(error, "sig", None))) == name
        except Exception:  # it will see by itself
            return False

    def _next(self, sent: Any) -> Call:
        """The call that what it `sent` in its own stead comes to."""
        call, task = self.call, self.call.task
        if sent is None or task is None or not call.task_id or call.message.has_arguments_of(sent):
            return call
        return self.single.call(task, call.task_id, sent.args, sent.kwargs)

    def _let_go(self, lock: BaseLock, stays: float) -> None:
        """Release, and let no trouble with it hide what the function did."""
        try:
            place = self._place(lock) if stays else None
            if place:
                place.inherit(stays)
            else:
                lock.release()
        except LockNotOwnedError:
            logger.error(
                "Lock lost while the task ran, another instance may have run: task=%s name=%r",
                *(self.call, lock.name),
            )
        except RedisError as error:
            logger.warning(
                "Lock not released, will retry until it expires: task=%s name=%r error=%s",
                *(self.call, lock.name, error_text(error)),
            )


def runs_again_in(delivery: Delivery, error: object) -> float | None:
    """Return the seconds until a task that ended with `error` runs again. None if never."""
    if isinstance(error, Retry):  # the retry was sent before it was raised
        return _delay(delivery.task, error.when) if delivery.message.has_queue else None
    if isinstance(error, Reject):
        # A message that was acknowledged before the task ran cannot return to its queue.
        can_return = error.requeue and delivery.task.acks_late  # type: ignore[attr-defined]
        return 0 if can_return else None
    if isinstance(error, Ignore):  # of ``self.replace()``, by the same task
        return 0 if delivery.resent_for_seconds else None
    return None


def _delay(task: Task[..., Any], when: Any) -> float:
    if isinstance(when, datetime | str):
        app, moment = task.app, maybe_iso8601(when)
        then = maybe_make_aware(moment, app.timezone)  # type: ignore[arg-type]  # a datetime
        return max(0.0, (then - app.now()).total_seconds())
    return float(when or 0)


def look_back(single: Single, delivery: Delivery) -> None:
    """Note how the message ended before, as long as the result backend knows it.

    Celery records next that the task has started, and a result backend can forget the rest.
    """
    task = delivery.task
    if not task.track_started or not delivery.message.task_id:
        return
    call = Call(task.run, task, (), {}, None, delivery, delivery.message)
    if call.may_have_run or Execution(single, task.run, call).is_replaceable:
        result = task.AsyncResult(delivery.message.task_id)
        with suppress(Exception):  # there is no result backend, or it is unreachable
            delivery.earlier_result = result if result.ready() else None
