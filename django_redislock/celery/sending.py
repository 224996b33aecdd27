"""Sending a task that takes its place in the queue when it is sent."""

from __future__ import annotations

import functools
import logging
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context
from celery.result import EagerResult
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from redis.exceptions import RedisError

from django_redislock.exceptions import LockError
from django_redislock.signals import task_replaced
from django_redislock.text import error_text, printable

from .call import Delivery, delivery_of, runs_under
from .conflict import MAX_LOOKS, Conflict, skip
from .message import AGAIN, CONFLICTS, DUPLICATE, EXPECTED, PLACE
from .single import Single, is_signed, queue_lock_token

if TYPE_CHECKING:
    from celery import Task

    from django_redislock.snapshots import Holding


logger = logging.getLogger("django_redislock")

FOLLOWERS = ("link", "link_error", "chord", "chain", "group_id", "reply_to")
"""Options by which somebody counts on the result of just this message."""

REPLACED = "replaced by a newer one"

SOONEST = 1.0
"""Seconds that a place lasts at least, also that of a task which expires at once."""


def take_place_when_sent(task: Task[..., Any], single: Single) -> None:
    """Have `apply_async` of this task take its place first; all ways to send it go through it."""
    send = type(task).apply_async

    @functools.wraps(send)
    def apply_async(
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        named = zip(("producer", "link", "link_error", "shadow"), more, strict=False)
        sending = Sending(task, single, args, kwargs, task_id, {**dict(named), **options})
        return sending.send()

    task.apply_async = apply_async  # type: ignore[method-assign]  # of this task alone


class Sending:
    """One message on its way, and its place."""

    def __init__(
        self,
        task: Task[..., Any],
        single: Single,
        args: Any,
        kwargs: Any,
        task_id: str | None,
        options: dict[str, Any],
    ) -> None:
        self.task, self.single, self.args, self.kwargs = task, single, args, kwargs
        self.options = options
        self.has_own_id = bool(task_id)
        self.task_id = str(task_id) if task_id else uuid()
        self.call = single.call(task, self.task_id, args, kwargs)
        self.lock_name = single.name_of(self.call)
        self.name = single.queue_lock_name(self.lock_name)
        lock = single.lock(self.name, self.call)
        lock.on_conflict = ""  # what sends itself again is not skipped
        self.place = single.queue_lock(lock, self.call, expected=self.is_expected)

    def send(self) -> Any:
        """Publish the message; or do what `on_conflict` says where its place is taken."""
        if past := self._past:
            return self._send_again(past)
        if self.has_own_id and self.options.get("retries"):
            return self._send_for_the_dead()
        if self.has_own_id and self._is_queued_already():
            self.conflict.look()
            return self._give_way()
        self.place.lock.on_conflict = self.conflict.policy  # the history has it of a refusal
        for _ in range(MAX_LOOKS):
            # Before _take(): the history has a refusal as skipped, and this one is sent.
            if replaced := self._displace():
                return self._publish_instead_of(replaced)
            if self._take():
                return self._publish_placed()
            if self.conflict.look() and not (self._replaces and self._replaceable()):
                break  # else it has come free meanwhile, or another task was queued
        return self._give_way()

    @cached_property
    def is_expected(self) -> bool:
        """Whether somebody counts on the result of just this message."""
        if past := self._past:
            return past.message.is_expected
        return self.has_own_id or any(self.options.get(each) for each in FOLLOWERS)

    @cached_property
    def conflict(self) -> Conflict:
        """With whoever has its place."""
        return Conflict(self.call, self.name, self.single)

    @property
    def _replaces(self) -> bool:
        return self.single.options.on_conflict == "replace"

    # A task that sends itself again: it runs, and its lock is passed on to what it sends

    @cached_property
    def _past(self) -> Delivery | None:
        """The delivery under way here with this id: of this task, or of a task that it replaces
        and that runs under the same lock."""
        past = delivery_of(self.task_id)
        is_own = past is not None and (past.task is self.task or self._runs_under_it)
        return past if is_own else None

    @property
    def _runs_under_it(self) -> bool:
        return runs_under(self.single.manager.alias, self.lock_name)

    def _send_again(self, past: Delivery) -> Any:
        headers = self.options.get("headers") or {}
        if DUPLICATE in headers:
            return self._publish_no_duplicate()
        passes_on = self._runs_under_it
        sent = self._publish_again(past, passes_on and self.name == self.lock_name)
        if passes_on:
            past.resent_for_seconds = float(self._seconds())
        return sent

    def _publish_again(self, past: Delivery, has_place: bool) -> Any:
        if not has_place and self._take():
            return self._publish_placed()
        headers = self.options.get("headers") or {}
        met_before = past.message.headers.get(CONFLICTS)
        is_by_conflict = headers.get(CONFLICTS) not in (None, met_before)
        # Else it is by ``self.retry()`` or ``self.replace()``: it was running, and is to run on.
        return self._publish(None if is_by_conflict else self._promise)

    def _send_for_the_dead(self) -> Any:
        """Publish the retry of an execution that lost its process, and may have its lock yet."""
        if DUPLICATE in (self.options.get("headers") or {}):
            return self._publish_no_duplicate()
        return self._publish_placed() if self._take() else self._publish({AGAIN: True})

    def _publish_no_duplicate(self) -> Any:
        """It was one, did not run, and is none any more."""
        headers = self.options["headers"]
        self.options["headers"] = {key: headers[key] for key in headers if key != DUPLICATE}
        return self._publish()

    # Its place

    def _take(self, predecessor: str | None = None) -> bool:
        try:
            if predecessor:
                return self.place.take_over(predecessor, self._seconds())
            return self.place.acquire(self._seconds())
        except BaseException as error:
            if isinstance(error, LockError) and error.held_as:  # by a task of another `limit`
                return False
            self.place.release_later()
            raise

    def _leave(self) -> None:
        with suppress(RedisError):  # then its lease ends it
            self.place.release()

    def _seconds(self) -> float:
        """For how long the place is taken, unless the task begins or ends before."""
        delay = self.options.get("countdown") or self._left(self.options.get("eta")) or 0
        longest = max(0, delay) + self.single.options.max_queue_seconds
        expires = self.options.get("expires", self.task.expires)
        if expires is None:
            return longest
        return max(SOONEST, min(longest, self._left(expires) or 0))

    def _left(self, moment: datetime | str | float | None) -> float | None:
        """Seconds until then."""
        if moment is None or isinstance(moment, int | float):
            return moment
        app = self.task.app
        then: Any = maybe_iso8601(moment)
        return (maybe_make_aware(then, app.timezone) - app.now()).total_seconds()

    # The message

    @property
    def _promise(self) -> dict[str, Any]:
        """The headers of a message that has its place, or is to have it."""
        return {PLACE: self.name} | ({EXPECTED: True} if self.is_expected else {})

    def _publish_placed(self) -> Any:
        try:
            result = self._publish(self._promise)
        except BaseException:
            self._leave()
            raise
        if isinstance(result, EagerResult):
            self._leave()  # it ran by now, or could not
        return result

    def _publish(self, more_headers: dict[str, Any] | None = None) -> Any:
        headers = {**(self.options.get("headers") or {}), **(more_headers or {})}
        options = {**self.options, "headers": headers, "task_id": self.task_id}
        return type(self.task).apply_async(self.task, self.args, self.kwargs, **options)

    # What becomes of it where its place is taken

    def _is_queued_already(self) -> bool:
        """Whether a message of this very id has the place: to its token it would seem free."""
        info = self.single.manager.get(self.name)
        return any(each.token == self.place.token for each in (info.holders if info else ()))

    def _displace(self) -> Holding | None:
        """Take the place from a queued task where that is wanted, and tell which lost it."""
        for holding in self._replaceable() if self._replaces else ():
            if self._take(holding.token):
                return holding
        return None

    def _replaceable(self) -> list[Holding]:
        """Return the queue locks that other tasks hold, if there is no room for one more."""
        info = self.single.manager.get(self.name)
        if info is None or sum(each.weight for each in info.holders) < info.capacity:
            return []
        return [
            each
            for each in info.holders
            if each.token == queue_lock_token(each.holder.task_id or "")
        ]

    def _publish_instead_of(self, replaced: Holding) -> Any:
        result, task_id = self._publish_placed(), replaced.holder.task_id
        logger.info("Queued task replaced: task=%s by=%s", printable(task_id), self.call)
        if not is_signed(replaced, self.name, self.call.name):
            logger.warning(
                "Replaced task not revoked: name=%r task=%s reason=%s",
                *(self.name, printable(task_id), "no valid signature in the queue lock"),
            )
        elif not replaced.metadata.get("expected"):  # else it has to end, though without running
            self._revoke(task_id or "")
        task_replaced.send_robust(
            sender=self.task, name=self.name, task_id=task_id, by_task_id=self.task_id
        )
        return result

    def _revoke(self, task_id: str) -> None:
        for tell in self._tell_workers, self._tell_backend:  # each as well as it can
            try:
                tell(task_id)
            except Exception as trouble:  # it sees by itself that another has its place
                said = error_text(trouble)
                logger.warning(
                    "Replaced task not revoked: name=%r task=%s reason=%s",
                    *(self.name, printable(task_id), said),
                )

    def _tell_workers(self, task_id: str) -> None:
        self.task.app.control.revoke(task_id)

    def _tell_backend(self, task_id: str) -> None:
        # Workers that are away now don't hear of it, and look there when it comes to run.
        store = not self.task.ignore_result
        # Without a request backends take that of the task that runs here, and rpc:// tells its
        # caller that it was revoked.
        replaced = Context(id=task_id, task=self.task.name)
        self.task.backend.mark_as_revoked(task_id, REPLACED, request=replaced, store_result=store)

    def _give_way(self) -> Any:
        holder = self.conflict.error.task_id
        if self.is_expected and holder != self.task_id:
            return self._publish({DUPLICATE: holder or ""})
        if self.single.options.on_conflict == "raise":
            raise self.conflict.error
        if not holder:  # then there is no result to give to the sender
            return self._publish({DUPLICATE: ""})
        skip(self.conflict)
        if self.task.app.conf.task_always_eager:
            return EagerResult(self.task_id, None, states.SUCCESS)
        return self.task.AsyncResult(holder)
