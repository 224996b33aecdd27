"""A call whose lock is not free, and the holder of that lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from django_redislock.exceptions import AlreadyRunning
from django_redislock.identity import complete_id, recorded_id
from django_redislock.lock_state import is_queued
from django_redislock.lock_types.signal_dispatch import send
from django_redislock.names import short_repr
from django_redislock.signals import task_skipped
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.text import holder_text, printable, short_duration

from .deliveries import Holder

if TYPE_CHECKING:
    from .single import TaskCall

logger = logging.getLogger("django_redislock")

SIMULATED = "simulated"
"""In the metadata of the queue lock of a task that exists only in a test."""


_warned: set[tuple[str, str]] = set()
"""The warnings that were logged, each with the name of its task."""


def warn_once(text: str, task_name: str, *args: object) -> None:
    """Log a warning, the first of whose arguments is the name of a task, once for that task."""
    if (text, task_name) not in _warned:
        _warned.add((text, task_name))
        logger.warning(text, task_name, *args)


def holders_of(info: LockInfo | None) -> tuple[Holding, ...]:
    """Return the holders of a lock that was read. None means that it had none."""
    return info.holders if info else ()


class Conflict:
    """A call whose lock is not free.

    Args:
        call: The call.
        name: The name of the lock.
        holder_id: The id of the task that holds the lock, if it is known already.
    """

    info: LockInfo | None = None
    """The lock as it was read last."""

    holding: Holding | None = None
    """The hold of the lock that the error names."""

    def __init__(self, call: TaskCall, name: str, holder_id: str | None = None) -> None:
        self.call = call
        self.name = name
        self.error = AlreadyRunning(name, holder_id)
        """The error that names the holder, if it is known."""

        self.holder = Holder.OTHER

    def look(self) -> bool:
        """Read who holds the lock, and return whether anybody does, or Redis is unreachable."""
        self.info = self.holding = None
        self.holder = Holder.OTHER
        try:
            self.info = self.call.single.manager.get(self.name)
        except RedisError:
            return True
        if self.info is None:
            self.holder = Holder.NOBODY
            return False
        if self.info.holders:
            self._set_holder(max(self.info.holders, key=self._rank))
        return True

    @property
    def is_with_running_itself(self) -> bool:
        """Whether an earlier execution of the same message still runs."""
        return self.holding is not None and all(self._rank(self.holding))

    @property
    def is_with_another_task(self) -> bool:
        """Whether only other tasks hold the lock, so that this call is not a duplicate."""
        own = self.call.task_name
        names = self._task_names
        return bool(own and names and names.isdisjoint({own, None}))

    @property
    def _task_names(self) -> set[str | None]:
        return {each.holder.task_name for each in self._holders}

    @property
    def is_full(self) -> bool:
        """Whether the holders take all of the lock."""
        taken = sum(each.weight for each in self._holders)
        return self.info is not None and taken >= self.info.capacity

    def is_with_queued_tasks(self, limit: int) -> bool:
        """Whether queued tasks take all of the lock, apart from holders in cooldown."""
        return (
            self.holding is not None
            and self.holder is not Holder.ITSELF
            and is_queued(self.holding)
            and len(self._holders) >= limit
        )

    @property
    def queue_locks(self) -> list[Holding]:
        """The queue locks, whose tasks may have ended without releasing them."""
        return [each for each in self._holders if is_queued(each)]

    @property
    def own_queue_locks(self) -> list[Holding]:
        """The queue locks of the task itself."""
        return [each for each in self.queue_locks if self._is_itself(each)]

    @property
    def _holders(self) -> tuple[Holding, ...]:
        return holders_of(self.info)

    def skip(self) -> None:
        """Log a warning and send `task_skipped`. The task then completes without running."""
        call, error = self.call, self.error
        event = "Task skipped" if call.task_name else "Call skipped"
        if error.in_cooldown and error.expires_in is not None:
            reason = f"cooldown={short_duration(error.expires_in)}"
        else:
            reason = f"holder={short_repr(error.task_id or error.held_by or 'unknown')}"
        logger.warning("%s: task=%s name=%r %s", event, call, self.name, reason)
        self._warn_about_another_task()
        send(
            task_skipped,
            sender=call.task,
            name=self.name,
            task_id=call.task_id,
            holder_task_id=error.task_id,
            args=call.sent_args,
            kwargs=call.kwargs,
        )

    def _warn_about_another_task(self) -> None:
        """Log once that the holder is another task with the same lock."""
        if self.is_with_another_task:
            others = ", ".join(sorted(map(str, self._task_names)))
            warn_once(
                "Skipped because of another task, so its work is lost: task=%s other=%s name=%r",
                *(self.call.name, printable(others), self.name),
            )

    def _rank(self, holding: Holding) -> tuple[bool, bool, bool]:
        """Return which holder is named if there are several, from the most important reason on."""
        # A holder in cooldown has no lease.
        return self._is_itself(holding), holding.timeout > 0, not is_queued(holding)

    def _set_holder(self, holding: Holding) -> None:
        self.holding = holding
        task_id = complete_id(holding.holder.task_id)
        if self._is_itself(holding):
            self.holder = Holder.ITSELF
            task_id = self.call.task_id
        self.error = AlreadyRunning(
            self.name,
            task_id,
            holding.ttl,
            held_by=holder_text(holding) if holding.holder.host else None,
            in_cooldown=not holding.timeout,
        )

    def _is_itself(self, holding: Holding) -> bool:
        task_id = self.call.task_id
        return bool(task_id) and holding.holder.task_id == recorded_id(str(task_id))
