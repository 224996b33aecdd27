"""Two tables: the action for a message by its delivery and by the holder of its lock.

They decide for all task frameworks, and the documentation prints them.
"""

from enum import StrEnum


class Delivery(StrEnum):
    """How a call reached its function. It is determined once, from validated facts."""

    CALLED = "called"
    """A direct call, `apply()`, or a call inside the instance that holds the lock. No message can
    bring it back later."""

    DUPLICATE = "duplicate"
    """Its sender found the queue lock of another task, but others need the result of this one."""

    FIRST = "first"
    """Nothing says that the message was delivered before. It can be a copy, where a sender did not
    learn that the broker has it."""

    RETRY = "retry"
    """The task sent it in its own place. That execution may still run."""

    RETURNED = "returned"
    """Redelivered, but acknowledged early: a worker had fetched it without starting it."""

    SENT_AGAIN = "sent again"
    """Sent again after a conflict, when an execution of the message may have begun."""

    REDELIVERED = "redelivered"
    """Redelivered, and acknowledged late: an execution of the message may have begun."""


class Claim(StrEnum):
    """Whether a task had a queue lock when it was sent."""

    NONE = "no queue lock"
    QUEUE_LOCK = "queue lock"
    """The task took its queue lock, so it runs, also if it lost that."""

    REPLACEABLE = "replaceable queue lock"
    """A newer task can have taken the queue lock over."""


class Occasion(StrEnum):
    """Why a message is sent."""

    NEW = "new"
    NEEDED = "needed"
    """Other tasks, or a caller that chose its id, depend on the result of just this message."""

    AGAIN = "again"
    """Its own execution sends it: a retry, or a replacement."""

    FOR_DEAD = "for a dead process"
    """A worker sends it in place of an execution whose pool process is dead."""


class Holder(StrEnum):
    """The holder of the lock that a call or a message needs."""

    NOBODY = "nobody"
    ITSELF = "itself"
    """An earlier execution of the same message, or its cooldown."""

    ENDED = "ended"
    """The queue lock of a task that has ended."""

    QUEUED = "queued"
    """Queued tasks take all of it. They can need the process in which this one would wait."""

    OTHER = "other"
    """Another task, a cooldown of one, or another program."""


class Action(StrEnum):
    """The next step of a call or a message."""

    RUN = "runs"
    RUN_LATER = "runs later"
    TAKE_OVER = "takes the lock over"
    IGNORE = "is ignored"
    """Not in the tables: the result backend decides about a message that may have begun before."""

    POLICY = "`on_conflict`"
    """The conflict policy decides."""

    SEND = "is sent"
    SEND_DUPLICATE = "is sent as a duplicate"


MAY_HAVE_BEGUN = {Delivery.SENT_AGAIN, Delivery.REDELIVERED}
"""The deliveries of messages that an execution may have begun. If the result backend says that one
has succeeded, the message is ignored."""

MAY_RUN_ALREADY = {Delivery.RETRY, Delivery.RETURNED, *MAY_HAVE_BEGUN}
"""The deliveries of messages that may be executed elsewhere at this moment."""

CAN_RUN_LATER = {Delivery.FIRST, *MAY_RUN_ALREADY}
"""The deliveries of messages that can be sent again."""

_WITHOUT_QUEUE = {
    Holder.NOBODY: Action.RUN,
    Holder.ITSELF: Action.POLICY,
    Holder.ENDED: Action.TAKE_OVER,
    Holder.QUEUED: Action.POLICY,
    Holder.OTHER: Action.POLICY,
}
_NEW = _WITHOUT_QUEUE | {Holder.ITSELF: Action.RUN_LATER}
_BEGUN = _NEW | {Holder.QUEUED: Action.RUN_LATER, Holder.OTHER: Action.RUN_LATER}

AT_START = {
    Delivery.CALLED: _WITHOUT_QUEUE,
    Delivery.DUPLICATE: dict.fromkeys(Holder, Action.POLICY),
    Delivery.FIRST: _NEW,
    Delivery.RETRY: _NEW,
    Delivery.RETURNED: _NEW,
    Delivery.SENT_AGAIN: _BEGUN,
    Delivery.REDELIVERED: _BEGUN,
}
"""The action when a call starts, for each holder of its lock."""


def action_at_start(
    delivery: Delivery, claim: Claim, holder: Holder, *, is_behind_running: bool = False
) -> Action:
    """Return the action when a call starts.

    A task that had a queue lock is not skipped, but runs later.

    Args:
        delivery: How the call was delivered.
        claim: Whether its task had a queue lock.
        holder: The holder of the lock.
        is_behind_running: Whether this is the lock of the running task, in a mode with separate
            locks. There the queued task runs after the running one.
    """
    action = AT_START[delivery][holder]
    has_turn = claim is Claim.QUEUE_LOCK or is_behind_running
    if action is Action.POLICY and has_turn and delivery in CAN_RUN_LATER:
        return Action.RUN_LATER
    return action


_POLICY = {
    Holder.NOBODY: Action.SEND,
    Holder.ITSELF: Action.POLICY,
    Holder.ENDED: Action.TAKE_OVER,
    Holder.QUEUED: Action.POLICY,
    Holder.OTHER: Action.POLICY,
}

WHEN_SENT = {
    Occasion.NEW: _POLICY,
    Occasion.NEEDED: _POLICY
    | {Holder.QUEUED: Action.SEND_DUPLICATE, Holder.OTHER: Action.SEND_DUPLICATE},
    Occasion.AGAIN: dict.fromkeys(Holder, Action.SEND),
    Occasion.FOR_DEAD: dict.fromkeys(Holder, Action.SEND),
}
"""The action when a message is sent, for each holder of its queue lock."""

SENT_ANYWAY = {Occasion.AGAIN, Occasion.FOR_DEAD}
"""The occasions on which a message is sent, whatever holds its queue lock."""
