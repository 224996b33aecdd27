"""The operations that a flow yields. A flow is a generator; `runners` performs its operations."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..backends import Server
from ..keys import LockKeys
from ..lua import Script

if TYPE_CHECKING:
    from .waiters import WaitingCaller

T = TypeVar("T")
Command: TypeAlias = tuple[str | int | float, ...]


@dataclass(slots=True)  # not frozen, which would cost more time
class Call:
    """Run a script, and return its reply."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]

    limit: float | None = None
    """Seconds to wait for the reply. None: as long as the client does."""

    urgent: bool = False
    """Whether a task that is cancelled still waits for the reply, for `CLEANUP_TIMEOUT_SECONDS`,
    because others wait for what the call does."""

    once: bool = False
    """Whether the call must not be repeated, because it would affect another holder."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Run scripts in one round trip, and return a list of their replies.

    With `replicas`, the last item is the number of replicas that confirmed the writes.
    """

    calls: tuple[Call, ...]
    limit: float | None = None

    replicas: int = 0
    """How many replicas to wait for, at most `REPLICA_WAIT_SECONDS`."""

    apart: bool = False
    """Whether an error that Redis replies with is an item of the list, and is not raised."""


@dataclass(frozen=True, slots=True)
class RawCommands:
    """Send commands other than scripts in one round trip, and return a list of their replies.

    An error that Redis replies with is an item of the list.
    """

    commands: tuple[Command, ...]
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """Join the inbox of this process or event loop, and return the `WaitingCaller`."""

    keys: LockKeys
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until a waiter gets a grant, and return it.

    Return None after `seconds`, or if the waiter has to ask again whether it holds the lock.
    """

    waiter: "WaitingCaller"
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Sleep for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gather:
    """Run flows concurrently, each on its server, and return a list of their outcomes: what a flow
    returns, or the exception that ended it."""

    flows: "tuple[OnServer[Any], ...]"


Op: TypeAlias = Call | Batch | RawCommands | Join | Wait | Sleep | Gather
Flow: TypeAlias = Generator[Op, Any, T]
OnServer: TypeAlias = tuple[Server, Flow[T]]


def changed(flow: Flow[T], change: Callable[[Op], Op]) -> Flow[T]:
    """Run a flow, and change each operation before it is performed."""
    try:
        op = next(flow)
        while True:
            try:
                reply = yield change(op)
            except BaseException as error:  # also an interrupt
                op = flow.throw(error)
            else:
                op = flow.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result
