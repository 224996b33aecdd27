"""Where a case happens: one package's lock, a server, and so many processes that use it."""

import os
import signal
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from tests.faults.proxy import Proxy
from tests.servers import Node
from tests.tools import Child

from .makes import MAKES

PATIENCE = 30.0
"""Seconds after which an answer is not waited for any more."""


@dataclass(frozen=True)
class Case:
    run: "Callable[[Place], str]"
    users: int
    lease: int
    query: str
    """What is added to the URL of the server."""

    environment: dict[str, str]


class Answer(NamedTuple):
    said: str
    at: float

    @property
    def is_yes(self) -> bool:
        return self.said in ("True", "released")


class User:
    """A process with locks of one package, behind a proxy of its own."""

    def __init__(self, proxy: Proxy, child: Child) -> None:
        self.proxy, self._child = proxy, child

    def starts(self, deed: str, *args: object) -> None:
        self._child.tell(" ".join(map(str, (deed, *args))))

    def answer(self, patience: float = PATIENCE) -> Answer | None:
        """What it came to; None if it did not yet."""
        try:
            said, at = self._child.expect("", timeout=patience).rsplit(" ", 1)
        except AssertionError:
            return None
        return Answer(said, float(at))

    def does(self, deed: str, *args: object) -> Answer:
        self.starts(deed, *args)
        answer = self.answer()
        assert answer, f"no answer to {deed} within {PATIENCE:.0f} s"
        return answer

    def is_ready(self) -> bool:
        return bool(self._child.expect("ready", timeout=60) == "")

    def kill(self) -> None:
        self._child.kill()

    def stop(self) -> None:
        os.kill(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._child.pid, signal.SIGCONT)


class Place:
    """Its users are started when it is entered, and killed when it is left."""

    def __init__(self, make: str, case: Case) -> None:
        self.make, self.lease = MAKES[make], case.lease
        self.name = f"lock-{uuid.uuid4().hex[:8]}"
        self._arguments = make, str(case.lease)
        self._count, self._query, self._environment = case.users, case.query, case.environment
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            folder = resources.enter_context(tempfile.TemporaryDirectory())
            self.node = resources.enter_context(Node(appendonly="yes", appendfsync="always"))
            self.users = [self._new_user(resources, Path(folder)) for _ in range(self._count)]
            for user in self.users:
                user.is_ready()
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def _new_user(self, resources: ExitStack, folder: Path) -> User:
        proxy = resources.enter_context(Proxy(*self.node.address))
        code = f"from {__package__}.user import serve; serve(*sys.argv[1:])"
        environment = self._environment | {
            "DJANGO_SETTINGS_MODULE": "testproject.settings",
            "REDIS_URL": proxy.url + self._query,
        }
        child = Child(code, *self._arguments, str(folder), **environment)
        return User(proxy, resources.enter_context(child))
