"""One trial: the name of a lock, and actors that are killed at the end."""

import time
import uuid
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from testproject.stage import TIMEOUT_SECONDS, DemoError

from .actors import Actor, ActorServer

LONG_LEASE_SECONDS = 60.0
"""A lease that is longer than any trial."""

ActorFactory = Callable[..., Any]
"""Makes the object that an actor calls, usually a lock from its name and lease."""


class Trial:
    def __init__(self, actor_server: ActorServer) -> None:
        self.actor_server = actor_server
        self.name = f"trial:{uuid.uuid4().hex}"
        self._actors: list[Actor] = []

    def actor(
        self,
        factory: ActorFactory,
        *args: Any,
        lease: float = LONG_LEASE_SECONDS,
        ahead: float = 0.0,
    ) -> Actor:
        """Start an actor with a lock that has the name of this trial."""
        return self.start(partial(factory, self.name, lease, *args), ahead=ahead)

    def start(self, factory: Callable[[], object], *, ahead: float = 0.0) -> Actor:
        actor = Actor(self.actor_server, factory, ahead=ahead)
        self._actors.append(actor)
        return actor

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise DemoError(f"Timed out after {TIMEOUT_SECONDS} s waiting until {what}")
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self._actors:
            actor.kill()


def wait_for_expiry(lease: float) -> None:
    """Wait until a lease that is not renewed has certainly expired."""
    time.sleep(lease * 1.25)


def require(condition: object, description: str) -> None:
    """Raise `DemoError` if a precondition of the trial does not hold."""
    if not condition:
        raise DemoError(f"A precondition was not met: {description}")
