"""Where one trial takes place: a lock's name, and the actors, who leave at the end."""

import time
import uuid
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from testproject.stage import PATIENCE, Failed

from .actors import Actor, Home

LONG = 60.0
"""A lease that ends in no trial."""

Part = Callable[..., Any]
"""Makes what an actor plays, most often a lock of a name and a lease."""


class Scene:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.name = f"trial:{uuid.uuid4().hex}"
        self._actors: list[Actor] = []

    def actor(self, part: Part, *args: Any, lease: float = LONG, ahead: float = 0.0) -> Actor:
        """A process with a lock of this scene's name."""
        return self.cast(partial(part, self.name, lease, *args), ahead=ahead)

    def cast(self, part: Callable[[], object], *, ahead: float = 0.0) -> Actor:
        actor = Actor(self.home, part, ahead=ahead)
        self._actors.append(actor)
        return actor

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > deadline:
                raise Failed(f"Waited {PATIENCE} s in vain until {what}")
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


def let_pass(lease: float) -> None:
    """Wait for as long as it surely takes a lease that nobody renews to end."""
    time.sleep(lease * 1.25)


def hold(true: object, what: str) -> None:
    """What a situation needs to be the one that is told; nothing is found out without."""
    if not true:
        raise Failed(f"The situation did not come about: {what}")
