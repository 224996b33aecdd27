"""One execution of a single-instance function: after its place in the queue, under its lock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore
from celery.result import AsyncResult
from celery.signals import task_prerun
from celery.states import REVOKED, SUCCESS
from redis.exceptions import RedisError

from django_redislock.exceptions import LockError, LockNotOwnedError
from django_redislock.introspection import reject_deferred_result
from django_redislock.text import error_text

from .abort import Abort
from .call import Call, held, runs_under, under_way
from .conflict import LOOKS, Conflict, end_duplicate, settle
from .message import DUPLICATE, place_in
from .retries import BEGUN, ENDED, comes_again, recall, remember, sent_again_for
from .single import Single, place_token, single_of

if TYPE_CHECKING:
    from celery import Task

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
        if self.call.task is not None:
            remember(self.call.task, BEGUN)
        with under_way(self.call):
            return self._run()

    def _run(self) -> Any:
        how, name = self.single.options.how, self.single.name_of(self.call)
        self._refuse_if_replaced()
        self._leave_place_but(self.single.place_name(name))
        if DUPLICATE in self.call.headers:
            return end_duplicate(self._conflict(self.single.place_name(name)))
        if not how.lock:
            return self._after_queue(name)
        if not how.apart:
            return self._under_lock(name, self._call, owed=self._is_owed)
        # Whoever is queued has its turn when the running one ends.
        after_queue = partial(self._after_queue, self.single.place_name(name))
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
        return self.call.has_begun or (keeps_place and place_in(self.call.headers) is not None)

    def _leave_place_but(self, name: str) -> None:
        """Leave the message's place if it has another name than that: the arguments came as
        others than they were when it was taken."""
        taken = place_in(self.call.headers) if self.single.options.how.place else None
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
        if self.call.has_begun and self._has_ended(SUCCESS):
            logger.info("Redelivered task ignored, it has already succeeded: task=%s", self.call)
            raise Ignore("The task has already succeeded")

    def _refuse_if_replaced(self) -> None:
        """Raise Celery's `Ignore` where a newer message took its place, as far as the result
        backend knows, and the worker did not hear that it was revoked."""
        if self._is_replaceable and self._has_ended(REVOKED):
            logger.info("Replaced task ignored: task=%s", self.call)
            raise Ignore("A newer task has replaced this one")

    @property
    def _is_replaceable(self) -> bool:
        replaces = self.single.options.on_conflict == "replace"
        return replaces and place_in(self.call.headers) is not None

    def look_back(self) -> None:
        """Learn how its message has ended before, as long as the result backend knows it."""
        task = self.call.task
        if task is not None and (self.call.has_begun or self._is_replaceable):
            result = task.AsyncResult(str(self.call.task_id))
            with suppress(Exception):  # there is no result backend, or it is away
                remember(task, ENDED, result if result.ready() else None)

    def _has_ended(self, state: str) -> bool:
        """Whether its message has ended so before, as far as the result backend knows."""
        task, task_id = self.call.task, self.call.task_id
        if task is None or task_id is None:
            return False
        ended = recall(task, ENDED)
        if isinstance(ended, AsyncResult) and ended.state == state:
            self._tell_again(ended)
            return True
        try:
            return bool(task.AsyncResult(task_id).state == state)
        except Exception:  # there is no result backend, or it is away
            return False

    def _tell_again(self, ended: AsyncResult[Any]) -> None:
        """Have the result backend know again what Celery has noted over."""
        request = self.call.request
        with suppress(Exception):  # it is away
            ended.backend.store_result(ended.id, ended.result, ended.state, request=request)

    def _place(self, lock: BaseLock) -> QueueLock | None:
        """The place of the message for which it runs, if there is one."""
        if not self.call.task_id:
            return None
        return self.single.place(lock, self.call, expected=self.call.is_expected)

    def _conflict(self, name: str, *, owed: bool = False) -> Conflict:
        manager = self.single.manager
        inside = runs_under(manager.alias, name)
        return Conflict(self.call, name, self.single.options, manager, inside=inside, owed=owed)

    def _refused(self, lock: BaseLock, *, owed: bool) -> Conflict | None:
        """Acquire the lock; or tell with whom there is a conflict."""
        if conflict := self._with_own_past(lock.name):
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
        may_run_yet = call.is_redelivered or call.has_begun
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
        task, options = self.call.task, self.single.options
        if task is None or not options.holds_on_retry or (options.limit or 1) > 1:
            return 0.0  # beside others it may have run already
        return sent_again_for(task)

    def _stays(self, error: BaseException) -> float:
        """Seconds for which the lock is kept for the task's next execution, 0 if it is not."""
        options, task = self.single.options, self.call.task
        if not (task and options.holds_on_retry):
            return 0
        delay = self._comes_again(task, error)
        return 0 if delay is None else delay + options.longest_in_queue

    def _comes_again(self, task: Task[..., Any], error: BaseException) -> float | None:
        try:
            return comes_again(task, error)
        except Exception:  # in what the task asked for; it is not to hide what the task raised
            logger.exception("Cannot determine whether the task runs again: task=%s", self.call)
            return None

    def _comes_again_as(self, name: str, error: BaseException) -> bool:
        """Whether the next execution has that name, too: it may have been sent other arguments."""
        try:
            return self.single.name_of(self._next(getattr(error, "sig", None))) == name
        except Exception:  # it will see by itself
            return False

    def _next(self, sent: Any) -> Call:
        """The call that what it `sent` in its own stead comes to."""
        call, task = self.call, self.call.task
        if sent is None or task is None or not call.task_id or call.came_by(sent):
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


@task_prerun.connect
def look_back(sender: Any, **_: Any) -> None:
    """Celery notes next that the task has started, and not every result backend keeps how it has
    ended then."""
    if sender.track_started and (single := single_of(sender)):
        Execution(single, sender.run, Call.under_way(sender.run, sender, (), {})).look_back()
