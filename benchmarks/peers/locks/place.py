"""The set-up of a case: the lock of one package, a server, and the processes that use it."""

import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.faults.crew import Client, usual_crew
from tests.faults.events import Log
from tests.faults.proxy import Command, Proxy
from tests.servers import Node
from tests.tools import wait_until

from .user import MAKES, Matches

USER = f"{__package__}.user"
PREFIX = "testproject"
BACKENDS = {
    "default": "django.core.cache.backends.redis.RedisCache",
    "django_redis": "django_redis.cache.RedisCache",
}

WAITING_AFTER_SECONDS = 0.3  # after this time, a client certainly waits
GIVE_UP_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    run: "Callable[[Place], str]"
    users: int
    lease: int
    query: str  # appended to the URL of the server
    asks_once: bool


class Answer(NamedTuple):
    said: str
    at: float

    @property
    def is_yes(self) -> bool:
        return self.said in ("True", "released")


class User(Client):
    """A process that uses locks of one package, behind its own proxy."""

    def __init__(self, proxy: Proxy, make: str, case: Case, log: Log) -> None:
        self.proxy = proxy
        self._make = MAKES[make]
        url = proxy.url + case.query
        aliases = {
            alias: {"BACKEND": backend, "LOCATION": url, "KEY_PREFIX": PREFIX}
            for alias, backend in BACKENDS.items()
        }
        crew = usual_crew(DJANGO_SETTINGS_MODULE="testproject.settings")
        super().__init__(crew, f"user {proxy.port}", log, aliases, seed="")
        self.ask(f"{USER}:be", make=make, lease=case.lease, url=url, asks_once=case.asks_once)

    def starts(self, method: str, *args: object) -> None:
        self.start(f"{USER}:do", method=method, args=args)

    def starts_waiting(self, method: str, name: str) -> None:
        """Start a method that acquires, and return when it waits."""
        asked = self.watch(self._make.acquires)
        self.starts(method, name)
        wait_until(lambda: bool(asked), timeout=GIVE_UP_SECONDS)
        time.sleep(WAITING_AFTER_SECONDS)

    def watch(self, matches: Matches = lambda command: True) -> list[Command]:
        """Return a list to which the user's further commands are added."""
        seen: list[Command] = []

        def note(command: Command) -> bool:
            if matches(command):
                seen.append(command)
            return False  # keep every reply

        self.proxy.drop_reply(note)
        return seen

    def answer(self, timeout: float = GIVE_UP_SECONDS) -> Any:
        """Return the answer, or None on a timeout."""
        if not self.has_answered(timeout):
            return None
        answer = super().answer()
        return Answer(*answer) if isinstance(answer, list) else answer

    def does(self, method: str, *args: object) -> Answer:
        self.starts(method, *args)
        answer = self.answer()
        assert answer, f"no answer to {method} within {GIVE_UP_SECONDS:.0f} s"
        return answer


class Place:
    """Context manager that starts and kills the server and the users of a case."""

    def __init__(self, make: str, case: Case) -> None:
        self.make, self.lease = MAKES[make], case.lease
        self.name = f"lock-{uuid.uuid4().hex[:8]}"
        self._make, self._case = make, case
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            folder = resources.enter_context(tempfile.TemporaryDirectory())
            log = resources.enter_context(closing(Log(Path(folder), "place")))
            self.node = resources.enter_context(Node(appendonly="yes", appendfsync="always"))
            self.users = []
            for _ in range(self._case.users):
                proxy = resources.enter_context(Proxy(*self.node.address))
                self.users.append(User(proxy, self._make, self._case, log))
                resources.callback(self.users[-1].end)
                resources.callback(self.users[-1].kill)
            for user in self.users:  # connect, and load the scripts
                assert user.does("acquire", f"{self.name}-{user.who}").is_yes
                assert user.does("release", f"{self.name}-{user.who}").is_yes
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()
