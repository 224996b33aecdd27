"""A call whose lock is not free, and the holder of that lock."""

from __future__ import annotations

import logging

from redis.exceptions import RedisError

from django_redislock.exceptions import AlreadyRunning
from django_redislock.identity import complete_id, recorded_id
from django_redislock.signals import task_skipped
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.text import holder_text, short_duration

from .single import Call

logger = logging.getLogger("django_redislock")

MAX_LOOKS = 3
"""How often the lock can be released before its holder is read."""


class Conflict:
    """A call whose lock is not free.

    Args:
        call: The call.
        name: The name of the lock.
    """

    holding: Holding | None = None
    """The hold that was read last."""

    is_of_queue = False
    """Whether the task that starts has no queue lock, and another task has it."""

    def __init__(self, call: Call, name: str) -> None:
        self.call, self.name = call, name
        self.error = AlreadyRunning(name)
        """The error that names the holder, if it is known."""

    def look(self) -> bool:
        """Read who holds the lock, and return whether anybody does."""
        try:
            return self._read(self.call.single.manager.get(self.name))
        except RedisError:
            return True

    async def alook(self) -> bool:
        """Async version of `look()`."""
        try:
            return self._read(await self.call.single.manager.aget(self.name))
        except RedisError:
            return True

    def look_for_itself(self) -> bool:
        """Return whether an earlier execution of the same message still runs."""
        info = self.call.single.manager.get(self.name)
        for holding in info.holders if info else ():
            if self._is_itself(holding) and holding.timeout and not holding.metadata.get("queued"):
                self._set_holder(holding)
                return True
        return False

    @property
    def is_with_itself(self) -> bool:
        """Whether an earlier execution of the same message holds the lock.

        It is about to end after ``self.retry()``, or its message was delivered twice.
        """
        return self.call.task_id is not None and self.call.task_id == self.error.task_id

    def skip(self) -> None:
        """Log a warning and send `task_skipped`. The task then completes without running."""
        call, error = self.call, self.error
        event = "Task skipped" if call.task_name else "Call skipped"
        if error.in_cooldown and error.expires_in is not None:
            reason = f"cooldown={short_duration(error.expires_in)}"
        else:
            reason = f"holder={error.task_id or error.held_by or 'unknown'!r}"
        logger.warning("%s: task=%s name=%r %s", event, call, self.name, reason)
        task_skipped.send_robust(
            sender=call.single.decorated if call.task is None else call.task,
            name=self.name,
            task_id=call.task_id,
            holder_task_id=error.task_id,
            args=call.sent_args,
            kwargs=call.kwargs,
        )

    def _read(self, info: LockInfo | None) -> bool:
        self.holding = None
        if info is not None and info.holders:
            # A holder in cooldown has no lease.
            found = max(info.holders, key=lambda each: (self._is_itself(each), each.timeout > 0))
            self._set_holder(found)
        return info is not None

    def _set_holder(self, holding: Holding) -> None:
        is_itself = self._is_itself(holding)
        self.holding = holding
        self.error = AlreadyRunning(
            self.name,
            self.call.task_id if is_itself else complete_id(holding.holder.task_id),
            holding.ttl,
            held_by=holder_text(holding) if holding.holder.host else None,
            in_cooldown=not holding.timeout,
        )

    def _is_itself(self, holding: Holding) -> bool:
        task_id = self.call.task_id
        return bool(task_id) and holding.holder.task_id == recorded_id(str(task_id))
