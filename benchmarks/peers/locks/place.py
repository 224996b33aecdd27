"""Where a case happens: one package's lock, a server, and so many processes that use it."""

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, Self

from tests.faults.proxy import Command, Proxy
from tests.servers import Node
from tests.tools import wait_until

from .makes import MAKES, Matches
from .user import serve

PRELOADED = [
    *("django.core.management", "django.db.models", "redis", "redis_lock", "pottery"),
    f"{__package__}.user",
]
"""What of a user is there before it is forked; what is not installed is passed over."""

A_MOMENT = 0.3  # seconds after which whoever asked waits, on a machine that has other things to do

PATIENCE = 60.0  # seconds after which an answer is not waited for any more


_context = get_context("forkserver")


@dataclass(frozen=True)
class Case:
    run: "Callable[[Place], str]"
    users: int
    lease: int
    query: str  # what is added to the URL of the server
    environment: dict[str, str]


class Answer(NamedTuple):
    said: str
    at: float

    @property
    def is_yes(self) -> bool:
        return self.said in ("True", "released")


class User:
    """A process with locks of one package, behind a proxy of its own."""

    def __init__(self, proxy: Proxy, make: str, case: Case, folder: Path) -> None:
        self.proxy = proxy
        self._make = MAKES[make]
        environment = case.environment | {
            "DJANGO_SETTINGS_MODULE": "testproject.settings",
            "REDIS_URL": proxy.url + case.query,
        }
        self._line, theirs = _context.Pipe()
        arguments = theirs, environment, make, case.lease, folder
        self._process = _context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def starts(self, deed: str, *args: object) -> None:
        self._line.send((deed, args))

    def starts_to_wait(self, deed: str, name: str) -> None:
        """As `starts`, with a deed that acquires; returns when the server was asked."""
        asked = self.watch(self._make.acquires)
        self.starts(deed, name)
        wait_until(lambda: bool(asked), timeout=PATIENCE)
        time.sleep(A_MOMENT)

    def watch(self, matches: Matches = lambda command: True) -> list[Command]:
        """What it asks the server from now on."""
        seen: list[Command] = []

        def note(command: Command) -> bool:
            if matches(command):
                seen.append(command)
            return False  # nothing is to be lost

        self.proxy.drop_reply(note)
        return seen

    def answer(self, patience: float = PATIENCE) -> Answer | None:
        """What it came to; None if it did not yet."""
        return Answer(*self._line.recv()) if self._line.poll(patience) else None

    def does(self, deed: str, *args: object) -> Answer:
        self.starts(deed, *args)
        answer = self.answer()
        assert answer, f"no answer to {deed} within {PATIENCE:.0f} s"
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._line.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)


class Place:
    """Its users are started when it is entered, and killed when it is left."""

    def __init__(self, make: str, case: Case) -> None:
        self.make, self.lease = MAKES[make], case.lease
        self.name = f"lock-{uuid.uuid4().hex[:8]}"
        self._user = partial(User, make=make, case=case)
        self._count = case.users
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        _context.set_forkserver_preload(PRELOADED)
        with ExitStack() as resources:
            folder = resources.enter_context(tempfile.TemporaryDirectory())
            self.node = resources.enter_context(Node(appendonly="yes", appendfsync="always"))
            self.users = [self._new_user(resources, Path(folder)) for _ in range(self._count)]
            for user in self.users:
                user.does("is_mine", self.name)  # it is there, and connected
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def _new_user(self, resources: ExitStack, folder: Path) -> User:
        proxy = resources.enter_context(Proxy(*self.node.address))
        return resources.enter_context(closing(self._user(proxy, folder=folder)))
