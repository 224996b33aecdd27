"""Sending a task that takes its queue lock when it is sent."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any

from celery import Task, states
from celery.app.task import Context
from celery.result import EagerResult
from celery.utils import uuid
from redis.exceptions import RedisError

from django_redislock.exceptions import LockError
from django_redislock.lock_state import is_queued
from django_redislock.lock_types.signal_dispatch import send
from django_redislock.signals import task_replaced
from django_redislock.snapshots import Holding
from django_redislock.tasks.conflict import Conflict
from django_redislock.tasks.execution import runs_under
from django_redislock.tasks.single import Single, is_signed
from django_redislock.text import error_text, printable

from .message import (
    AGAIN,
    CACHE,
    CONFLICTS,
    DUPLICATE,
    EXPECTED,
    QUEUE_LOCK,
    call_of,
    executed,
    executed_message,
    queue_seconds,
    seconds_until,
)
from .publishing import Publication
from .results import AGAIN as MAY_STORE_LATER
from .results import ended_queue_lock
from .skipped import eager_ids

logger = logging.getLogger("django_redislock")

FOLLOWER_OPTIONS = ("link", "link_error", "chord", "chain", "group_id", "reply_to")
"""Options by which other tasks depend on the result of this message."""


_warned: set[str] = set()
"""The names of the tasks for which that warning was logged."""

MAX_ATTEMPTS = 100
"""How often the queue lock can be released, or taken by another sender, while this one tries."""


def take_queue_lock_when_sent(task: Task[..., Any], single: Single) -> None:
    """Let `apply_async` of a task take its queue lock. All ways to send a task go through it."""
    send = type(task).apply_async

    @wraps(send)
    def apply_async(
        args: Any = None, kwargs: Any = None, task_id: Any = None, *more: Any, **options: Any
    ) -> Any:
        options |= zip(("producer", "link", "link_error", "shadow"), more, strict=False)
        return Sending(task, single, args, kwargs, task_id, options).send()

    task.apply_async = apply_async  # type: ignore[method-assign]  # of this task alone


class Sending:
    """A message that is being sent, and its queue lock."""

    def __init__(
        self,
        task: Task[..., Any],
        single: Single,
        args: Any,
        kwargs: Any,
        task_id: str | None,
        options: dict[str, Any],
    ) -> None:
        # As Celery does, but also if the message is not sent.
        if task.typing and type(task).apply_async is Task.apply_async:
            check_arguments: Any = getattr(task, "__header__", None)
            if check_arguments:
                check_arguments(*(args or ()), **(kwargs or {}))
        self.task, self.single, self.args, self.kwargs = task, single, args, kwargs
        self.options, self.headers = options, dict(options.get("headers") or {})
        self.start = options.get("countdown") or options.get("eta")
        self.has_own_id = bool(task_id)
        self.task_id = str(task_id) if task_id else uuid()
        call = call_of(single, task, self.task_id, args, kwargs)
        lock_name = single.name_of(call)
        self.name = single.queue_lock_name(lock_name)
        self.conflict = Conflict(call, self.name)
        # The execution of the same id that sends the message: of this task, or of a task that it
        # replaces and that runs under the same lock.
        self.runs_under_lock = runs_under(single.manager.alias, lock_name)
        earlier = executed_message(self.task_id)
        # Of a chain or a group that replaces the task, each member has an id of its own.
        if self.runs_under_lock and options.get("replaced_task_nesting"):
            earlier = earlier or next(reversed(executed.get()), None)
        is_same = earlier is not None and (earlier.task is task or self.runs_under_lock)
        self.earlier = earlier if is_same else None
        # Whether other tasks or a caller depend on the result of just this message.
        call.is_expected = self.has_own_id or any(map(options.get, FOLLOWER_OPTIONS))
        if self.earlier:
            call.is_expected = self.earlier.is_expected
        is_of_dead_process = self.has_own_id and bool(options.get("retries"))
        self.is_sent_again = self.earlier is not None or is_of_dead_process
        lock = single.lock(self.name, call)
        # For the history: a task that is sent again is not skipped.
        lock.on_conflict = "" if self.is_sent_again else single.options.policy
        self.queue_lock = single.queue_lock(lock, call)
        self.queue_lock.metadata |= self._schedule()
        if self.is_sent_again:
            self.queue_lock.metadata[MAY_STORE_LATER] = True

    def send(self) -> Any:
        """Publish the message, or do what `on_conflict` says if the queue lock is not free."""
        if self.is_sent_again:
            return self._send_again()
        is_known = self.has_own_id and self.conflict.look() and self.conflict.is_with_itself
        if is_known and not self.conflict.error.in_cooldown:
            if not self._has_ended():
                return self._give_way()  # a message with this id is queued or runs
            self.queue_lock.release()
        replaces = self.single.options.on_conflict == "replace"
        for _ in range(MAX_ATTEMPTS):
            # Before the queue lock is acquired: the history would show a refusal as skipped.
            replaced = self._replaceable() if replaces and self.conflict.look() else None
            if self._take(replaced.token if replaced else None):
                return self._publish_with_queue_lock(replaced)
            # Otherwise the lock was released since, or another task was queued.
            if not self.conflict.look() or (replaces and self._replaceable()):
                continue
            ended = ended_queue_lock(self.task, self.conflict.queue_locks)
            if not ended:
                break
            if self._take(ended.token):
                task_id = printable(ended.holder.task_id)
                logger.info(
                    "Queue lock taken over from a task that has ended: name=%r task=%s by=%s",
                    *(self.name, task_id, self.conflict.call),
                )
                return self._publish_with_queue_lock()
        return self._give_way()

    def _has_ended(self) -> bool:
        """Return whether the message with this id has ended, whose queue lock is held."""
        holding = self.conflict.holding
        if holding is None or not is_queued(holding):
            return False
        return ended_queue_lock(self.task, [holding]) is not None

    def _send_again(self) -> Any:
        """Publish a message that the task sends itself, or the worker for a dead pool process."""
        if DUPLICATE in self.headers:  # it has not run, and its next execution is a normal one
            del self.headers[DUPLICATE]
            return self._publish({})
        # If the task runs under the lock with this name, the lock becomes the queue lock.
        keeps_lock = self.runs_under_lock and not self.single.options.locking.separate
        if not keeps_lock and self._take():
            return self._publish_with_queue_lock()
        if self.earlier is None:  # the dead process can still hold the lock
            return self._publish({AGAIN: True})
        met_before = self.earlier.headers.get(CONFLICTS)
        is_by_conflict = self.headers.get(CONFLICTS) not in (None, met_before)
        # After ``self.retry()`` or ``self.replace()``, the task has run, and must run again.
        return self._publish({} if is_by_conflict else self._queue_lock_headers)

    # The queue lock

    def _queue_seconds(self) -> float:
        expires = self.options.get("expires", self.task.expires)
        return queue_seconds(self.single, self.task.app, self.start, expires)

    def _take(self, predecessor: str | None = None) -> bool:
        seconds = self._queue_seconds()
        try:
            if predecessor:
                return self.queue_lock.take_over(predecessor, seconds)
            return self.queue_lock.acquire(seconds)
        except LockError as error:
            if error.held_as:  # by a task of another `limit`
                return False
            raise

    def _schedule(self) -> dict[str, str]:
        """Return what the queue lock shows of the message, as far as the sender knows it: the
        earliest start and the broker queue."""
        schedule, delay = {}, seconds_until(self.start, self.task.app) or 0
        with suppress(OverflowError):
            if delay > 0:
                start = datetime.now(UTC) + timedelta(seconds=delay)
                schedule["eta"] = start.isoformat(timespec="seconds")
        queue = self.options.get("queue") or getattr(self.task, "queue", None)
        if name := getattr(queue, "name", queue):
            schedule["broker_queue"] = str(name)
        return schedule

    # The message

    @property
    def _queue_lock_headers(self) -> dict[str, Any]:
        """The headers of a message that holds the queue lock, or must run anyway."""
        headers = {QUEUE_LOCK: self.name, EXPECTED: self.conflict.call.is_expected}
        alias = self.single.options.using
        return headers if alias is None else {**headers, CACHE: alias}

    def _publish_with_queue_lock(self, replaced: Holding | None = None) -> Any:
        end_replaced = partial(self._end, replaced) if replaced else None
        publication = Publication(
            self.task_id, self.queue_lock, self._queue_seconds(), end_replaced
        )
        was_sent = False
        try:
            result = self._publish(self._queue_lock_headers)
            # An eager task has run, or could not. A task class can send nothing, or later.
            was_sent = not isinstance(result, EagerResult) and publication.settle()
        finally:
            if not was_sent:
                with suppress(RedisError):  # it expires
                    self.queue_lock.release()
        return result

    def _publish(self, more_headers: dict[str, Any]) -> Any:
        headers = {**self.headers, **more_headers}
        options = {**self.options, "headers": headers, "task_id": self.task_id}
        return type(self.task).apply_async(self.task, self.args, self.kwargs, **options)

    # A queue lock that is not free

    def _replaceable(self) -> Holding | None:
        """Return the queue lock of another task, if all holders use the whole `limit`."""
        info = self.conflict.info
        if info is None or sum(each.weight for each in info.holders) < info.capacity:
            return None
        return next(filter(is_queued, info.holders), None)

    def _end(self, replaced: Holding) -> None:
        """End the queued task whose queue lock this one has taken over."""
        task_id, call = replaced.holder.task_id or "", self.conflict.call
        logger.info("Queued task replaced: task=%s by=%s", printable(task_id), call)
        if not is_signed(replaced, self.name, call.name):
            self._log_not_revoked(task_id, "no valid signature in the queue lock")
        elif not replaced.metadata.get("expected"):  # else it must end, but does not run
            self._revoke(task_id)
        send(
            task_replaced,
            sender=self.task,
            name=self.name,
            task_id=task_id,
            by_task_id=self.task_id,
        )

    def _revoke(self, task_id: str) -> None:
        """Tell the workers and the result backend. The task can find out by itself, too."""
        # Without a request, a backend uses the request of the task that runs here. Then rpc://
        # reports the revocation to the wrong caller.
        request = Context(id=task_id, task=self.task.name)
        stores = not self.task.ignore_result
        store = partial(self.task.backend.mark_as_revoked, request=request, store_result=stores)
        for tell in (
            partial(self.task.app.control.revoke, task_id),
            partial(store, task_id, "replaced by a newer one"),
        ):
            try:
                tell()
            except Exception as error:
                self._log_not_revoked(task_id, error_text(error))

    def _log_not_revoked(self, task_id: str, reason: str) -> None:
        logger.warning(
            "Replaced task not revoked: name=%r task=%s reason=%s",
            *(self.name, printable(task_id), reason),
        )

    def _give_way(self) -> Any:
        holder = self.conflict.error.task_id
        if self.conflict.call.is_expected and holder != self.task_id:
            return self._publish({DUPLICATE: holder or ""})
        if self.single.options.on_conflict == "raise":
            raise self.conflict.error
        if not holder:  # the sender cannot get the result of another task
            return self._publish({DUPLICATE: ""})
        self.conflict.skip()
        self._warn_if_inside(holder)
        if self.task.app.conf.task_always_eager:
            eager_ids.append(self.task_id)
            return EagerResult(self.task_id, None, states.SUCCESS)
        return self.task.AsyncResult(holder)

    def _warn_if_inside(self, holder: str) -> None:
        """Log once that a task which schedules its own next run is refused by its own lock."""
        name = self.task.name
        if self.runs_under_lock and executed_message(holder) and name not in _warned:
            _warned.add(name)
            logger.warning(
                "Task cannot send itself while it runs, because its own lock refuses the next"
                " one: task=%s name=%r mode=%s",
                *(self.conflict.call, self.name, self.single.options.mode),
            )
