"""Stored messages: tasks that wait in the queue of a lock, without a process.

A message that is granted the lock must be sent. Until somebody has confirmed that, it can be taken
from the outbox again. `lua/_messages.lua` describes the keys.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ..conf import conf
from ..keys import Keys, LockKeys
from ..lua import CANCEL, OUTBOX, SENT, STORE
from .operations import Call, Flow
from .parsing import text, valid_reply
from .timing import REPLY_TIMEOUT_SECONDS, RESEND_SECONDS

MAX_TAKEN = 20
"""How many messages one request takes from the outbox."""


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A message to store. To send the request again is harmless, because its token is the same."""

    keys: LockKeys
    token: str = field(repr=False)
    kind: str
    capacity: int
    weight: int

    lease: float
    """The lease of the queue lock in seconds, from when the message may be executed."""

    payload: str
    """The holder payload of the queue lock."""

    message: str = field(repr=False)

    starts_in: float = 0
    """The seconds until the message may be executed."""

    expires_in: float = 0
    """The seconds until the message expires, or 0."""

    most: int = 0
    """The limit of messages in the queue, or 0."""

    arrival: int = 0
    """The arrival that an earlier reply had, to get the same place in the queue. Or 0."""


class StoreOutcome(StrEnum):
    """What became of a message that was to be stored."""

    GRANTED = "granted"
    """It has the lock, and the caller has to send it."""

    QUEUED = "queued"
    """It is sent when it gets the lock."""

    FULL = "full"
    """Refused: the queue has too many messages."""

    KIND = "kind"
    """Refused: the lock is in use as another lock type."""


class Stored(NamedTuple):
    """The reply to a `StoreRequest`."""

    outcome: StoreOutcome

    detail: str = ""
    """The arrival, or that lock type."""

    claim: str = ""
    """What `confirm()` needs if the message is granted."""


class OutgoingMessage(NamedTuple):
    """A message that must be sent."""

    token: str

    claim: str
    """What `confirm()` needs. It is over if somebody else takes the message."""

    arrival: int

    is_again: bool
    """Whether somebody has taken it before, and may have sent it."""

    message: str


def store(request: StoreRequest) -> Flow[Stored]:
    """Store a message in the queue of its lock, or grant the lock to it."""
    terms = (
        *(request.kind, request.capacity, request.weight),
        *map(_ms, (request.lease, request.starts_in, request.expires_in, RESEND_SECONDS)),
        *(request.most, request.arrival),
    )
    keys = request.keys
    args = (
        *(keys.name, request.token, " ".join(map(str, terms))),
        *(request.payload, request.message, conf.history),
    )
    reply = yield Call(STORE, keys.all, args, limit=REPLY_TIMEOUT_SECONDS)
    with valid_reply():
        outcome, *details = text(reply).split(" ")
        return Stored(StoreOutcome(outcome), *details)


def take(keys: Keys) -> Flow[list[OutgoingMessage]]:
    """Take messages that must be sent. Each of them can be taken again after `RESEND_SECONDS`."""
    args = (MAX_TAKEN, _ms(RESEND_SECONDS), conf.history)
    reply = yield Call(OUTBOX, _all(keys), args, limit=REPLY_TIMEOUT_SECONDS)
    with valid_reply():
        return [
            OutgoingMessage(
                text(token), text(claim), int(arrival), bool(int(again)), text(message)
            )
            for token, claim, arrival, again, message in zip(*[iter(reply)] * 5, strict=True)
        ]


def confirm(keys: Keys, token: str, claim: str) -> Flow[bool]:
    """Remove a message from the outbox that was sent, or that must not be sent.

    A caller that was paused meanwhile removes nothing: the message may have been granted again.
    """
    of_prefix = keys.of("")
    names = (of_prefix.inboxes, of_prefix.history)
    reply = yield Call(SENT, names, (token, claim, conf.history), limit=REPLY_TIMEOUT_SECONDS)
    return bool(reply)


def cancel(keys: Keys, token: str, *, sends: bool) -> Flow[bool]:
    """Take a message out of the queue, and return whether it was in one.

    Args:
        keys: The keys of the server.
        token: The stored token.
        sends: Whether it must be sent, without the lock. If not, it is removed.
    """
    args = (token, "send" if sends else "drop", conf.history)
    reply = yield Call(CANCEL, _all(keys), args, limit=REPLY_TIMEOUT_SECONDS)
    return bool(reply)


def _all(keys: Keys) -> tuple[str, ...]:
    """Return the prefixes of all keys, in the order of the keys of a lock."""
    return keys.of("").all


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
