"""One execution of a single-instance function under its lock."""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

from asgiref.sync import sync_to_async
from redis.exceptions import RedisError

from django_redislock.exceptions import LockError, LockLost, LockNotOwnedError
from django_redislock.introspection import reject_deferred_result
from django_redislock.lock_types import BaseLock
from django_redislock.snapshots import Holding
from django_redislock.text import error_text

from .abort import Abort
from .conflict import Conflict
from .deliveries import CAN_RUN_LATER, Action, Claim, Delivery, Holder, action_at_start
from .single import TaskCall

logger = logging.getLogger("django_redislock")

_held: ContextVar[tuple[tuple[str, BaseLock], ...]] = ContextVar(
    "django_redislock_held", default=()
)
"""The locks that single-instance functions hold here, and their cache aliases. An asyncio task
that a function has started inherits them, and may run for longer. Then they have no token."""


def current_lock() -> BaseLock | None:
    """Return the lock of the innermost single-instance function that runs in this thread, greenlet
    or asyncio task.

    A long task can check `lost`, and can store `fence_token` together with its data.

    Returns:
        The lock, or None outside a single-instance function.
    """
    return next((lock for _, lock in reversed(_held.get()) if lock.token), None)


def runs_under(alias: str, name: str) -> bool:
    """Return whether this call is made inside a function that runs under a lock."""
    return (alias, name) in [(held, lock.name) for held, lock in _held.get() if lock.token]


class Execution:
    """One call of a single-instance function."""

    delivery = Delivery.CALLED

    claim = Claim.NONE

    conflicts = 0
    """How often the call was sent again because of a conflict."""

    kept_metadata: Mapping[str, Any] = {}
    """The metadata of the queue lock that the lock becomes if it is kept."""

    def __init__(self, call: TaskCall) -> None:
        self.call, self.single, self.options = call, call.single, call.single.options
        self.alias, self.name = self.single.manager.alias, self.single.name_of(call)
        self.queue_lock_name = self.single.queue_lock_name(self.name)

    @property
    def can_run_later(self) -> bool:
        """Whether a message can bring the call back."""
        return self.delivery in CAN_RUN_LATER

    def run(self) -> Any:
        """Run the function under its locks, or do what `on_conflict` says."""
        locking, body = self.options.locking, self._call_function
        if locking.when_sent:
            self._prepare_queue_lock()
            if locking.separate or not locking.while_running:
                body = self._run_after_queue
        return self._run_under_lock(body) if locking.while_running else body()

    async def arun(self) -> Any:
        """Async version of `run()`. No framework with coroutine functions has separate queue
        locks."""
        locking = self.options.locking
        if locking.when_sent:
            await sync_to_async(self._prepare_queue_lock)()
        if not locking.while_running:
            after_queue = await sync_to_async(self._after_queue)()
            return self._settle(after_queue) if after_queue else await self._acall_function()
        lock = self.single.running_lock(self.name, self.call)
        if conflict := await self._aacquire_or_conflict(lock):
            return self._settle(conflict)
        before = _held.set((*_held.get(), (self.alias, lock)))
        try:
            return await self._acall_function()
        finally:
            _held.reset(before)
            try:
                await lock.arelease()
            except RedisError as error:
                self._log_release_error(error)

    def _call_function(self) -> Any:
        function = self.single.function
        return reject_deferred_result(function, function(*self.call.args, **self.call.kwargs))

    async def _acall_function(self) -> Any:
        function = self.single.function
        result = await function(*self.call.args, **self.call.kwargs)
        return reject_deferred_result(function, result)

    # A call whose lock is not free

    def _action(self, holder: Holder, name: str) -> Action:
        """Return what happens to the call if `holder` holds the lock `name`."""
        is_behind_running = self.options.locking.separate and name == self.name
        return action_at_start(
            self.delivery, self.claim, holder, is_behind_running=is_behind_running
        )

    def _settle(self, conflict: Conflict) -> Any:
        """Do what the delivery of the call says, or else its conflict policy."""
        if self._action(conflict.holder, conflict.name) is Action.RUN_LATER:
            self.run_later(conflict)
        return self.options.policy.at_start(self, conflict)

    def skip(self, conflict: Conflict) -> Any:
        """Complete the call without running it."""
        conflict.skip()

    def run_later(self, conflict: Conflict) -> NoReturn:
        """Send the message of the call again. Without one, raise the error."""
        raise conflict.error

    # The lock

    def _run_under_lock(self, body: Callable[[], Any]) -> Any:
        lock = self.single.running_lock(self.name, self.call)
        if self.options.on_lost == "abort":
            abort = Abort()
            lock.on_lost = abort
            body = partial(abort.run, lock, body)
        kept, conflict, before = 0.0, None, _held.get()
        # A soft time limit can interrupt between any two lines.
        try:
            conflict = self._acquire_or_conflict(lock)
            if conflict is None:
                _held.set((*before, (self.alias, lock)))
                result = body()
                kept = self._seconds_kept(lock, None)
                return result
        except BaseException as error:
            lock.killed = self._is_terminated(error)
            kept = self._seconds_kept(lock, error)
            raise
        finally:
            _held.set(before)
            if conflict is None:
                self._release(lock, kept)
        return self._settle(conflict)

    @property
    def _waits(self) -> bool:
        """Whether the call waits for its lock, unless it is made inside the holder of that."""
        return self.options.policy.waits and not runs_under(self.alias, self.name)

    def _acquire_or_conflict(self, lock: BaseLock) -> Conflict | None:
        """Acquire the lock, or return the conflict with its holder."""
        if self._acquires(lock, blocking=self._waits):
            return None
        conflict = Conflict(self.call, self.name)
        conflict.look()
        return conflict

    async def _aacquire_or_conflict(self, lock: BaseLock) -> Conflict | None:
        """Async version of `_acquire_or_conflict()`."""
        if await self._aacquires(lock):
            return None
        conflict = Conflict(self.call, self.name)
        await sync_to_async(conflict.look)()
        return conflict

    def _ended_queue_lock(self, conflict: Conflict) -> Holding | None:
        """Return a queue lock of another task that has ended, if the framework knows that."""
        return None

    def _acquires(self, lock: BaseLock, *, blocking: bool = False) -> bool:
        """Acquire a lock, or take over the queue lock of this message.

        If a lock of another type has the name, as before the task's `limit` was added or removed,
        do not wait for it. If it is the queue lock of this message, release it.
        """
        try:
            return lock.acquire(blocking=blocking)
        except LockError as error:
            released = self._released_other_type(error)
        return released and self._acquires(lock, blocking=blocking)

    async def _aacquires(self, lock: BaseLock) -> bool:
        """Async version of `_acquires()`, which waits if `on_conflict` says so."""
        try:
            return await lock.aacquire(blocking=self._waits)
        except LockError as error:
            released = await sync_to_async(self._released_other_type)(error)
        return released and await self._aacquires(lock)

    def _released_other_type(self, error: LockError) -> bool:
        """Release the queue lock of this message if it is of the type that refused the lock."""
        if not error.held_as:
            raise error
        return self.single.release_queue_lock(self.name, self.call)

    # The queue lock

    def _prepare_queue_lock(self) -> None:
        """Prepare the use of the queue lock."""

    def _run_after_queue(self) -> Any:
        """Release the queue lock when the task starts, and call the function."""
        conflict = self._after_queue()
        return self._settle(conflict) if conflict else self._call_function()

    def _after_queue(self) -> Conflict | None:
        """Release the queue lock, or return the conflict with its holder."""
        if self.options.at_least_for and not self.options.locking.separate:
            lock = self.single.running_lock(self.name, self.call)
            was_held = self._acquires(lock)
            if was_held:
                lock.release()  # the cooldown counts from the start of the task
        else:
            was_held = self.single.release_queue_lock(self.queue_lock_name, self.call)
        conflict = Conflict(self.call, self.queue_lock_name)
        # A task that must not be skipped runs without its queue lock.
        if was_held or self._action(conflict.holder, conflict.name) is Action.RUN_LATER:
            return None
        if not conflict.look() or self._ended_queue_lock(conflict):
            return None
        return conflict

    # Release

    def _is_terminated(self, error: BaseException) -> bool:
        """Return whether the function ended because its process is being terminated."""
        return False

    def _seconds_kept(self, lock: BaseLock, error: BaseException | None) -> float:
        """Return for how many seconds the lock is kept for the task's next execution."""
        return 0.0

    def _release(self, lock: BaseLock, kept: float) -> None:
        """Release the lock, or pass it on to the queue lock of the task's next execution."""
        try:
            if kept and self.call.task_id:
                queue_lock = self.single.queue_lock(lock, self.call)
                queue_lock.metadata |= self.kept_metadata
                queue_lock.inherit(kept)
            else:
                lock.release()
        except RedisError as error:
            self._log_release_error(error)

    def _log_release_error(self, error: RedisError) -> None:
        """Log an error of a release. It must not hide what the function did."""
        if isinstance(error, LockLost):
            logger.error(
                "Lock lost while the task ran, another instance may have run: task=%s name=%r",
                *(self.call, self.name),
            )
        elif not isinstance(error, LockNotOwnedError):  # it was not acquired, or is released
            logger.warning(
                "Lock not released, will retry until it expires: task=%s name=%r error=%s",
                *(self.call, self.name, error_text(error)),
            )
