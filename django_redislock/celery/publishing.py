"""Whether a message was published, whose queue lock is held already.

The class of a task can defer a message to the commit of a transaction, or send nothing. Celery's
signal shows what it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from celery import signals
from redis.exceptions import RedisError

from django_redislock.lock_types import QueueLock
from django_redislock.tasks.transactions import TRANSACTION_SECONDS, on_end, open_transactions
from django_redislock.text import error_text, printable

from .message import task_id_in

logger = logging.getLogger("django_redislock")


class Publication:
    """The publication of one message.

    Args:
        task_id: The id of the task.
        queue_lock: Its queue lock, which is held.
        seconds: The lease of the queue lock.
        then: A function that is called when the message is published, and its sender is done.
    """

    is_done = False
    """Whether the message was published."""

    def __init__(
        self,
        task_id: str,
        queue_lock: QueueLock,
        seconds: float,
        then: Callable[[], None],
    ) -> None:
        self.task_id, self.queue_lock, self.seconds = task_id, queue_lock, seconds
        self._then = then
        self._transactions = 0
        _expected[task_id] = self

    def keeps_queue_lock(self) -> bool:
        """Return whether the queue lock is kept, after the sender is done.

        If the message was not published, the queue lock is kept until the open transactions end.
        """
        if self.is_done:
            self._then()
            return True
        aliases = open_transactions()
        if aliases:
            with suppress(RedisError):
                self.queue_lock.set_lease(min(self.seconds, TRANSACTION_SECONDS))
        self._transactions = len(aliases)
        for alias in aliases:
            on_end(self._transaction_ended, using=alias)
        return bool(aliases)

    def published(self) -> None:
        """Keep the queue lock for the message."""
        self.is_done = True
        if not self._transactions:
            return
        try:
            self.queue_lock.acquire(self.seconds)
        except RedisError as error:
            logger.warning(
                "Queue lock not kept: task=%s name=%r error=%s",
                *(printable(self.task_id), self.queue_lock.lock.name, error_text(error)),
            )

    def _transaction_ended(self, committed: bool) -> None:
        self._transactions -= 1
        if self._transactions:
            return
        if not self.is_done:
            self.queue_lock.release_later()
        elif committed:
            self._then()


_expected: WeakValueDictionary[str, Publication] = WeakValueDictionary()
"""The messages that are sent here, or when a transaction is committed, by the ids of the tasks."""


@signals.after_task_publish.connect
def published(headers: Any, body: Any, **_: Any) -> None:
    """Note that a message was published."""
    if publication := _expected.get(task_id_in(headers, body)):
        publication.published()
