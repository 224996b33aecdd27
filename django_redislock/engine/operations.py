"""What a flow can ask its driver for. A flow is a generator of these."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ..backends import Server
from ..lua import Script

T = TypeVar("T")
Parts: TypeAlias = tuple[str | int | float, ...]
Command: TypeAlias = tuple[Parts, ...]
"""What often comes again is a piece of its own, and packed once; the last piece is the rest."""

CLEANUP_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for the answer to a vital call after its task was cancelled, and for the release
that follows an acquisition that failed."""

REPLICA_WAIT_SECONDS = 1.0
"""Seconds in which the replicas that are wanted have to have what was written."""


@dataclass(slots=True)
class Call:
    """Run a script; answers what it answers."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]

    about: tuple[str | int, ...] = ()
    """What comes before `args`, and often comes again."""

    limit: float | None = None
    """Seconds to wait for the answer, if less than the client would."""

    vital: bool = False
    """To be finished even if its task is cancelled meanwhile, if that is quick."""

    once: bool = False
    """Not to be asked again, as it then could be about somebody else."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Run several scripts in one round trip; answers a list of their answers, and last the number
    of replicas that have what they wrote, if that is wanted."""

    calls: tuple[Call, ...]
    limit: float | None = None

    replicas: int = 0
    """How many replicas are waited for, at most `REPLICA_WAIT_SECONDS`."""

    apart: bool = False
    """Errors that Redis answers are among the answers: one of them is none of the others'."""


@dataclass(frozen=True, slots=True)
class RawCommands:
    """Send commands that are no scripts in one round trip; answers a list of their answers, with
    the errors that Redis answers among them. A client may have parsed what it knows."""

    commands: tuple[Parts, ...]
    limit: float | None = None

    key: str = ""
    """Where several servers share the keys: whoever keeps this one is asked."""


@dataclass(frozen=True, slots=True)
class BlockingPop:
    """Pop from a list; answers the text, or None after `seconds` without any."""

    key: str
    seconds: float

    limit: float
    """Seconds after which no answer at all counts as a dead connection."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gather:
    """Run flows at the same time, each on a server of its own; answers a list of what each
    answers, or of the exception that it ended with."""

    flows: "tuple[OnServer[Any], ...]"


Op: TypeAlias = Call | Batch | RawCommands | BlockingPop | Sleep | Gather
Flow: TypeAlias = Generator[Op, Any, T]
OnServer: TypeAlias = tuple[Server, Flow[T]]
