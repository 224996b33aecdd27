"""Sending a task that takes its queue lock when it is sent."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial, wraps
from typing import Any

from celery import Task, states
from celery.app.task import Context
from celery.result import EagerResult
from celery.utils import uuid
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.engine.outages import is_outage
from django_redislock.engine.stored import Stored, StoreOutcome
from django_redislock.exceptions import LockError
from django_redislock.lock_types.signal_dispatch import send
from django_redislock.lock_types.stored_task import Outbox, store
from django_redislock.signals import task_replaced
from django_redislock.snapshots import Holding
from django_redislock.tasks.conflict import Conflict, warn_once
from django_redislock.tasks.deliveries import (
    SENT_ANYWAY,
    WHEN_SENT,
    Action,
    Holder,
    Occasion,
)
from django_redislock.tasks.execution import runs_under
from django_redislock.tasks.single import Single, is_signed
from django_redislock.text import error_text, printable

from .message import (
    AGAIN,
    ARRIVAL,
    CACHE,
    CONFLICTS,
    DUPLICATE,
    EXPECTED,
    MAX_ARRIVAL,
    QUEUE_LOCK,
    Message,
    call_of,
    delay_until,
    executed,
    executed_message,
    number,
    queue_seconds,
    seconds_until,
)
from .ordered import StoringProducer, send_due
from .publishing import Publication
from .results import IS_EXPECTED, STORES_LATER, ended_queue_lock
from .skipped import eager_ids

logger = logging.getLogger("django_redislock")

FOLLOWER_OPTIONS = ("link", "link_error", "chord", "chain", "group_id", "reply_to")
"""Options by which other tasks depend on the result of this message."""

MIN_EXPIRY_SECONDS = 0.001
"""A message that has expired already. 0 means that it does not expire."""

OUTAGE_PAUSE_SECONDS = 2
"""Until a message is delivered again that could not be stored."""

LOOK_SECONDS = 1.0
"""Between two looks of a process whether the task that holds up a queue has ended. A look is a
request, and asks the result backend."""

MAX_LOOKS = 1000
"""Of how many queues a process remembers when it looked last."""

MAX_ATTEMPTS = 100
"""How often the queue lock can be released, or taken by another sender, while this one tries."""


_last_looks: dict[tuple[str, str], float] = {}
"""When this process looked last, by cache alias and lock."""


def take_queue_lock_when_sent(task: Task[..., Any], single: Single) -> None:
    """Let `apply_async` of a task take its queue lock. All ways to send a task go through it."""
    send = type(task).apply_async

    @wraps(send)
    def apply_async(
        args: Any = None, kwargs: Any = None, task_id: Any = None, *more: Any, **options: Any
    ) -> Any:
        options |= zip(("producer", "link", "link_error", "shadow"), more, strict=False)
        return Sending(task, single, args or (), kwargs or {}, task_id, options).send()

    task.apply_async = apply_async  # type: ignore[method-assign]  # of this task alone


class NotStored(Exception):
    """Redis did not store a message.

    It is not an error of Redis: kombu would take that for an error of the broker.
    """

    def __init__(self, reason: RedisError) -> None:
        super().__init__(reason)
        self.reason = reason


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
        # As Celery does, but also if the message is not sent. A class of its own may change them.
        if task.typing and type(task).apply_async is Task.apply_async:
            check_arguments: Any = getattr(task, "__header__", lambda *_, **__: None)
            check_arguments(*args, **kwargs)
        self.task = task
        self.single = single
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.headers = dict(options.get("headers") or {})
        self.start = options.get("countdown") or options.get("eta")
        self.has_own_id = bool(task_id)
        self.task_id = str(task_id) if task_id else uuid()
        call = call_of(single, task, self.task_id, args, kwargs)
        lock_name = single.name_of(call)
        self.name = single.queue_lock_name(lock_name)
        self.call = call
        self.is_inside = runs_under(single.manager.alias, lock_name)
        """Whether it is sent inside the instance that holds the lock."""

        self.earlier = self._earlier()
        self.occasion = self._occasion()
        call.is_expected = self.occasion is not Occasion.NEW
        if self.earlier:
            call.is_expected = self.earlier.is_expected
        lock = single.lock(self.name, call)
        self.queue_lock = single.queue_lock(lock, call)
        self.queue_lock.metadata |= self._schedule()
        if self.occasion in SENT_ANYWAY:
            lock.on_conflict = ""  # for the history: it is not skipped
            self.queue_lock.metadata[STORES_LATER] = True

    @cached_property
    def conflict(self) -> Conflict:
        """The conflict if the queue lock is not free."""
        return Conflict(self.call, self.name)

    @cached_property
    def _queue_seconds(self) -> float:
        expires = self.options.get("expires", self.task.expires)
        return queue_seconds(self.single, self.task.app, self.start, expires)

    def _earlier(self) -> Message | None:
        """Return the execution that sends the message in its own place: of this task, or of a task
        that it replaces and that runs under the same lock."""
        earlier = executed_message(self.task_id)
        # Of a chain or a group that replaces the task, each member has an id of its own.
        if self.is_inside and self.options.get("replaced_task_nesting"):
            earlier = earlier or next(reversed(executed.get()), None)
        if earlier and earlier.task is not self.task and not self.is_inside:
            return None
        return earlier

    def _occasion(self) -> Occasion:
        if self.earlier:
            return Occasion.AGAIN
        if self.has_own_id and self.options.get("retries"):
            return Occasion.FOR_DEAD
        has_followers = any(map(self.options.get, FOLLOWER_OPTIONS))
        return Occasion.NEEDED if self.has_own_id or has_followers else Occasion.NEW

    def send(self) -> Any:
        """Publish the message, or do what `on_conflict` says if the queue lock is not free."""
        if self.occasion in SENT_ANYWAY:
            return self._send_again()
        if self.has_own_id and self._is_known():
            return self._refuse()
        if self._stores:
            return self._store({})
        policy = self.single.options.policy
        # Before the first attempt, because the history would show a refusal.
        replaced = policy.replaceable(self.conflict)
        for _ in range(MAX_ATTEMPTS):
            if self._take(replaced):
                return self._publish_with_queue_lock(replaced)
            self.conflict.look()
            replaced = policy.replaceable(self.conflict)
            if replaced or self.conflict.holder is Holder.NOBODY:
                continue
            ended = ended_queue_lock(self.task, self.conflict.queue_locks)
            if not ended:
                break
            if self._take(ended):
                task_id = printable(ended.holder.task_id)
                logger.info(
                    "Queue lock taken over from a task that has ended: name=%r task=%s by=%s",
                    *(self.name, task_id, self.call),
                )
                return self._publish_with_queue_lock()
        return self._refuse()

    def _is_known(self) -> bool:
        """Return whether a message with this id is queued or runs. If it has ended, release its
        queue lock."""
        conflict = self.conflict
        conflict.look()
        if conflict.holder is not Holder.ITSELF or conflict.error.in_cooldown:
            return False
        if ended_queue_lock(self.task, conflict.own_queue_locks) is None:
            return True
        self.queue_lock.release()
        return False

    def _send_again(self) -> Any:
        """Publish a message that an execution sends in its place, or the worker for a dead one."""
        if DUPLICATE in self.headers:  # it has not run, and its next execution is a normal one
            del self.headers[DUPLICATE]
            return self._publish({})
        if self.is_inside and not self.single.options.locking.separate:
            # The task runs under the lock with this name, which becomes the queue lock.
            return self._publish(self._headers_again)
        if self._stores:
            return self._store_or_publish(self._headers_again)
        if self._take():
            return self._publish_with_queue_lock()
        return self._publish(self._headers_again)

    # The queue lock

    def _take(self, predecessor: Holding | None = None) -> bool:
        if predecessor:
            return self.queue_lock.take_over(predecessor.token, self._queue_seconds)
        return self.queue_lock.acquire(self._queue_seconds)

    def _schedule(self) -> dict[str, str]:
        """Return what the queue lock shows of the message, as far as the sender knows it: the
        earliest start and the broker queue."""
        schedule = {}
        delay = delay_until(self.start, self.task.app)
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
        headers: dict[str, Any] = {QUEUE_LOCK: self.name}
        if self.call.is_expected:
            headers[EXPECTED] = True
        if alias := self.single.options.using:
            headers[CACHE] = alias
        return headers

    @property
    def _headers_again(self) -> dict[str, Any]:
        """The headers of a message that is sent again without a new queue lock."""
        if self.earlier is None:  # the dead process can still hold the lock
            return {AGAIN: True}
        met_before = self.earlier.headers.get(CONFLICTS)
        if self.headers.get(CONFLICTS) not in (None, met_before):
            return {}  # it has met another conflict, and has not run
        # After ``self.retry()`` or ``self.replace()``, the task has run, and must run again.
        return {**self._queue_lock_headers, AGAIN: False}

    def _publish_with_queue_lock(self, replaced: Holding | None = None) -> Any:
        then = partial(self._end, replaced)
        publication = Publication(self.task_id, self.queue_lock, self._queue_seconds, then)
        was_sent = False
        try:
            result = self._publish(self._queue_lock_headers)
            # An eager task has run, or could not. A task class can send nothing, or later.
            was_sent = not isinstance(result, EagerResult) and publication.keeps_queue_lock()
        finally:
            if not was_sent:
                with suppress(RedisError):  # it expires
                    self.queue_lock.release()
        return result

    def _publish(self, more_headers: dict[str, Any]) -> Any:
        headers = {**self.headers, **more_headers}
        options = {**self.options, "headers": headers, "task_id": self.task_id}
        return type(self.task).apply_async(self.task, self.args, self.kwargs, **options)

    # A message that waits in the queue of its lock

    @property
    def _stores(self) -> bool:
        policy = self.single.options.policy
        return policy.stores and not self.task.app.conf.task_always_eager

    def _store(self, more_headers: dict[str, Any]) -> Any:
        options = self.options
        producer = StoringProducer(
            self, options.pop("producer", None), options.pop("connection", None)
        )
        options["producer"] = producer
        try:
            return self._publish({**self._queue_lock_headers, **more_headers})
        except NotStored as error:
            raise error.reason from None
        finally:
            producer.close()

    def _store_or_publish(self, more_headers: dict[str, Any]) -> Any:
        """Store a message that was with the broker before. While Redis is away, it returns there,
        and is stored when it is delivered again."""
        try:
            return self._store(more_headers)
        except RedisError as error:
            if not is_outage(error):
                raise
        del self.options["producer"]
        self.options["countdown"] = OUTAGE_PAUSE_SECONDS
        return self._publish({**self._queue_lock_headers, **more_headers})

    def store(self, message: str) -> Stored:
        """Store a message that Celery has made, or raise an error if it is refused."""
        app = self.task.app
        expires = seconds_until(self.options.get("expires", self.task.expires), app)
        try:
            stored = store(
                self.queue_lock,
                message,
                lease=self.single.options.max_queue_seconds,
                starts_in=delay_until(self.start, app),
                expires_in=0 if expires is None else max(MIN_EXPIRY_SECONDS, expires),
                most=self._max_queued,
                arrival=number(self.headers.get(ARRIVAL), MAX_ARRIVAL),
            )
        except RedisError as error:
            raise NotStored(error) from error
        if stored.outcome is StoreOutcome.QUEUED and self._is_look_due():
            self._release_ended()
        if stored.outcome is StoreOutcome.FULL:
            self._release_ended()
            raise self.conflict.error
        if stored.outcome is StoreOutcome.KIND:
            raise LockError(
                f"Lock {self.name!r} is in use as a {stored.detail} lock, so the task cannot be"
                " queued. Use another name.",
                lock_name=self.name,
            )
        return stored

    @property
    def _max_queued(self) -> int:
        """The limit of messages in the queue, or 0: a message that returns is not refused."""
        if self.occasion in SENT_ANYWAY:
            return 0
        return self.single.options.max_queued or 0

    def _is_look_due(self) -> bool:
        """Return whether this process has not looked at the queue a moment ago."""
        now = clock.now()
        queue = self.single.manager.alias, self.name
        if now < _last_looks.get(queue, -math.inf) + LOOK_SECONDS:
            return False
        if len(_last_looks) >= MAX_LOOKS:
            _last_looks.clear()
        _last_looks[queue] = now
        return True

    def _release_ended(self) -> None:
        """Let the queue go on if a task has ended and left its queue lock."""
        self.conflict.look()
        ended = ended_queue_lock(self.task, self.conflict.queue_locks)
        if ended is None:
            return
        with suppress(RedisError):  # it expires
            if self.single.manager.release_for(self.name, ended.stored_token):
                logger.info(
                    "Queue lock released of a task that has ended: name=%r task=%s by=%s",
                    *(self.name, printable(ended.holder.task_id), self.call),
                )
            send_due(self.task.app, self.single.manager)

    def confirm(self, claim: str) -> None:
        """Note that the broker has the message. If that fails, it is published a second time."""
        with suppress(RedisError):
            self._outbox.confirm(self.queue_lock.token, claim)

    def withdraw(self, claim: str) -> None:
        """Forget a message that could not be published, and release its queue lock."""
        with suppress(RedisError):
            if self._outbox.confirm(self.queue_lock.token, claim):
                self.queue_lock.release()

    @property
    def _outbox(self) -> Outbox:
        return Outbox(self.single.manager.alias)

    # A queue lock that is not free

    def _end(self, replaced: Holding | None) -> None:
        """End the queued task whose queue lock this one has taken over, if there is one."""
        if replaced is None:
            return
        task_id, call = replaced.holder.task_id or "", self.call
        logger.info("Queued task replaced: task=%s by=%s", printable(task_id), call)
        if not is_signed(replaced, self.name, call.name):
            self._log_not_revoked(task_id, "no valid signature in the queue lock")
        elif not replaced.metadata.get(IS_EXPECTED):  # else it must end, but does not run
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

    def _refuse(self) -> Any:
        """Do what the occasion of a message says whose queue lock is not free, or else the policy.

        A message that others need is sent as a duplicate, unless it is queued already, or would be
        skipped because of another task.
        """
        policy = self.single.options.policy
        # Only the id is known of a lock that nobody holds any more.
        is_same = self.conflict.error.task_id == self.task_id
        holder = Holder.ITSELF if is_same else Holder.OTHER
        runs_later = policy.loses_work and self.conflict.is_with_another_task
        if WHEN_SENT[self.occasion][holder] is Action.SEND_DUPLICATE and not runs_later:
            return self._publish_duplicate()
        return policy.when_sent(self, self.conflict)

    def _publish_duplicate(self) -> Any:
        return self._publish({DUPLICATE: self.conflict.error.task_id or ""})

    def skip(self, conflict: Conflict) -> Any:
        """Return the result of the task that holds the queue lock. If it is not a task, the
        message is sent as a duplicate, so that it has a result of its own. If it is another task,
        the message is sent, and runs later."""
        if conflict.is_with_another_task:
            return self._publish(self._queue_lock_headers)
        holder = conflict.error.task_id
        if not holder:
            return self._publish_duplicate()
        conflict.skip()
        self._warn_if_inside(holder)
        if self.task.app.conf.task_always_eager:
            eager_ids.append(self.task_id)
            return EagerResult(self.task_id, None, states.SUCCESS)
        return self.task.AsyncResult(holder)

    def _warn_if_inside(self, holder: str) -> None:
        """Log once that a task which schedules its own next run is refused by its own lock."""
        if self.is_inside and executed_message(holder):
            warn_once(
                "Task cannot send itself while it runs, because its own lock refuses the next"
                " one: task=%s name=%r mode=%s",
                *(self.task.name, self.name, self.single.options.mode),
            )
