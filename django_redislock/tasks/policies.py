"""The conflict policies, a class each: they decide about a task whose lock is not free."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, cast

from django_redislock.snapshots import Holding

from .deliveries import Claim, Holder

if TYPE_CHECKING:
    from .conflict import Conflict
    from .options import Locking, Options


MAX_BACK_OFF_SECONDS = 60


def back_off(conflicts: int) -> float:
    """Return the seconds to wait after a number of conflicts: 1, 2, 4 ... with jitter.

    It is at least 1, because quorum queues of RabbitMQ delay messages by whole seconds.
    """
    longest = min(MAX_BACK_OFF_SECONDS, 2.0 ** min(conflicts, 10))
    return max(1.0, longest * random.uniform(0.5, 1))  # noqa: S311  jitter is no secret


class StartingCall(Protocol):
    """A call that met a conflict when it started."""

    conflicts: int
    """How often it was sent again because of a conflict."""

    @property
    def can_run_later(self) -> bool:
        """Whether a message can bring it back."""

    def skip(self, conflict: Conflict) -> Any:
        """Complete the call without running it."""

    def run_later(self, conflict: Conflict) -> NoReturn:
        """Send its message again."""


class Sender(Protocol):
    """A message that met a conflict when it was sent."""

    def skip(self, conflict: Conflict) -> Any:
        """Return the result of the task that holds the queue lock, instead of sending."""


class Policy:
    """Decides about a task whose lock is not free, unless its delivery does.

    Args:
        options: The options of `single_instance`.
    """

    name: ClassVar[str]
    """The value of ``on_conflict``."""

    recorded_as: ClassVar[str] = ""
    """The policy in the history, which shows the refusals of ``"skip"`` as skipped tasks."""

    is_for_start: ClassVar[bool] = True
    """Whether it works in the mode that locks when a task starts."""

    is_for_sending: ClassVar[bool] = False
    """Whether it works in modes that lock when a task is sent."""

    options: ClassVar[tuple[str, ...]] = ()
    """The options of `single_instance` that only this policy uses."""

    loses_work: ClassVar[bool] = False
    """Whether a duplicate ends without an error and without running."""

    needs_messages: ClassVar[bool] = False
    """Whether the task framework must be able to send a message again, or to revoke one."""

    claim: ClassVar[Claim] = Claim.QUEUE_LOCK
    """The claim of a task that took its queue lock."""

    replaces: ClassVar[bool] = False
    """Whether a newer task can take over the queue lock of a queued one."""

    stores: ClassVar[bool] = False
    """Whether messages wait in the queue of their lock."""

    waits: ClassVar[bool] = False
    """Whether a task that starts waits for its lock."""

    def __init__(self, options: Options) -> None:
        self.of_task = options

    @classmethod
    def works_with(cls, locking: Locking) -> bool:
        """Return whether the policy works in a mode that locks at these times."""
        return cls.is_for_sending if locking.when_sent else cls.is_for_start

    def at_start(self, call: StartingCall, conflict: Conflict) -> Any:
        """Settle the conflict of a call that starts, and return the result of the call."""
        raise conflict.error

    def when_sent(self, sender: Sender, conflict: Conflict) -> Any:
        """Settle the conflict of a message that is sent, and return the result for its sender."""
        raise conflict.error

    def replaceable(self, conflict: Conflict) -> Holding | None:
        """Look at the holders, if need be, and return the queue lock that a message takes over."""
        return None

    def seconds_until_retry(self, conflicts: int) -> float:
        """Return the seconds until a task that runs later may start, after some conflicts."""
        if self.of_task.countdown is None:
            return back_off(conflicts)
        return cast("float", self.of_task.countdown)


class Skip(Policy):
    """A task that starts completes with None. One that is sent is not sent: its sender gets the
    result of the task that holds the queue lock. If another task has the lock, this one is not a
    duplicate, and runs later."""

    name = recorded_as = "skip"
    is_for_sending = True
    loses_work = True

    def at_start(self, call: StartingCall, conflict: Conflict) -> Any:
        if conflict.is_with_another_task and call.can_run_later:
            call.run_later(conflict)
        return call.skip(conflict)

    def when_sent(self, sender: Sender, conflict: Conflict) -> Any:
        return sender.skip(conflict)


class Raise(Policy):
    """The task, or its sender, gets `AlreadyRunning`."""

    name = recorded_as = "raise"
    is_for_sending = True


class Retry(Policy):
    """The task is sent again after `countdown`, at most `max_retries` times. Then, or if there is
    no message, it raises `AlreadyRunning`."""

    name = recorded_as = "retry"
    options = ("countdown", "max_retries")
    needs_messages = True

    def at_start(self, call: StartingCall, conflict: Conflict) -> Any:
        most = self.of_task.max_retries
        if call.can_run_later and (most is None or call.conflicts < most):
            call.run_later(conflict)
        raise conflict.error


class Wait(Policy):
    """The task waits in its process, at most for `blocking_timeout`, and then raises
    `AlreadyRunning`. Behind queued tasks it does not wait, but is sent again: they can need the
    process in which it would wait."""

    name = recorded_as = "wait"
    options = ("blocking_timeout",)
    waits = True

    def at_start(self, call: StartingCall, conflict: Conflict) -> Any:
        if conflict.holder is Holder.QUEUED:
            call.run_later(conflict)
        raise conflict.error


class Replace(Skip):
    """A new task takes over the queue lock of a queued one, which is revoked. A task that runs is
    not stopped: the new one is skipped."""

    name = "replace"
    is_for_start = False
    claim = Claim.REPLACEABLE
    needs_messages = True
    replaces = True

    def replaceable(self, conflict: Conflict) -> Holding | None:
        conflict.look()
        if not conflict.is_full:
            return None
        name = conflict.call.task_name
        return next((each for each in conflict.queue_locks if each.holder.task_name == name), None)


class Queue(Policy):
    """All tasks run, one after the other, in the order in which they were sent. A message waits in
    the queue of its lock until the lock is free. If there are `max_queued` already, its sender
    gets `AlreadyRunning`."""

    name = recorded_as = "queue"
    is_for_start = False
    is_for_sending = True
    options = ("max_queued",)
    needs_messages = True
    stores = True

    @classmethod
    def works_with(cls, locking: Locking) -> bool:
        return locking.when_sent and locking.while_running and not locking.separate

    def seconds_until_retry(self, conflicts: int) -> float:
        return 0  # it waits in the queue of its lock

    def at_start(self, call: StartingCall, conflict: Conflict) -> Any:
        if call.can_run_later:
            call.run_later(conflict)
        raise conflict.error

    def when_sent(self, sender: Sender, conflict: Conflict) -> Any:
        if conflict.holder is Holder.ITSELF:  # the same message is queued or runs
            return sender.skip(conflict)
        raise conflict.error


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Skip, Raise, Retry, Wait, Replace, Queue)
}
