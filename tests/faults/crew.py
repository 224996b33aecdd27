"""Clients, as the harness has them: to ask, to stop, to kill."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from django_redislock.clock import now
from django_redislock.keys import Keys
from tests.tools import ROOT, wait_until

from .events import Event, Follower, Log

CORE = "django.core.cache.backends.redis.RedisCache"
PREFIX = "faults"
KEYS = Keys(f"{PREFIX}:redislock")
LONGEST = 60
"""Seconds that an answer may take."""


def caches(url: str, **options: Any) -> dict[str, Any]:
    """The setting CACHES of a client, on one server."""
    entry = {"BACKEND": CORE, "LOCATION": url, "KEY_PREFIX": PREFIX, "OPTIONS": options}
    return {"default": entry}


class Crew:
    """Where clients come from: one process that has imported everything, and forks them.

    `python` and `environment` are for clients of another make: other libraries, another clock,
    another release of the product.
    """

    def __init__(
        self, folder: Path, log: Log, *, python: str = sys.executable, **environment: str
    ) -> None:
        self.folder = folder
        self.log = log
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [python, "-m", "tests.faults.client", str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def client(self, who: str, caches: Mapping[str, Any], *, seed: str = "") -> "Client":
        order = {"who": who, "folder": str(self.folder), "caches": dict(caches), "seed": seed}
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            socket.send_fds(self._requests, [json.dumps(order).encode()], [theirs.fileno()])
            answer = self._requests.recv(64)
        assert answer, "the process that forks clients has ended"
        return Client(who, int(answer), ours, self)

    def close(self) -> None:
        self._requests.close()
        self._process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Client:
    """One process. It does one thing after the other; `start` does not wait until it is done."""

    def __init__(self, who: str, pid: int, orders: socket.socket, crew: Crew) -> None:
        self.who = who
        self.pid = pid
        self._log = crew.log
        self._orders = orders
        self._answers = orders.makefile("r")
        self._process = os.pidfd_open(pid)
        self.died: float | None = None
        self._followed = Follower(crew.folder, who)

    def ask(self, do: str, **told: Any) -> Any:
        """What it answers. AssertionError if that takes too long, or it dies."""
        self.start(do, **told)
        return self.answer()

    def start(self, do: str, **told: Any) -> None:
        self._orders.sendall(json.dumps({"do": do, **told}).encode() + b"\n")

    def answer(self, *, timeout: float = LONGEST) -> Any:
        assert self.has_answered(timeout), f"{self.who} did not answer within {timeout} s"
        line = self._answers.readline()
        assert line, f"{self.who} ended without an answer"
        return json.loads(line)

    def has_answered(self, timeout: float = 0) -> bool:
        return bool(select.select([self._orders], [], [], timeout)[0])

    # What it did

    def events(self) -> list[Event]:
        return self._followed.events()

    def last(self, *whats: str) -> Event | None:
        """Its last event (of these kinds)."""
        events = (
            event for event in reversed(self.events()) if event["what"] in whats or not whats
        )
        return next(events, None)

    def wait_for(self, what: str, *, after: float = 0, timeout: float = 20) -> Event:
        """The first such event after that time, as soon as it has happened."""

        def found() -> Event | None:
            events = (each for each in self.events() if each["what"] == what)
            return next((each for each in events if each["t"] > after), None)

        event = wait_until(found, timeout=timeout, interval=0.002)
        assert event
        return event

    # What is done to it

    def kill(self) -> None:
        """SIGKILL; it is no more when this returns."""
        t = now()
        self._signal(signal.SIGKILL)
        assert self._is_gone(10), f"{self.who} survived SIGKILL"
        self.died = now()
        self._log.write("killed", t=t, client=self.who, dead=self.died)

    def stop(self) -> None:
        """SIGSTOP; it stands still when this returns."""
        t = now()
        self._signal(signal.SIGSTOP)
        wait_until(self.is_stopped, interval=0.001)
        self._log.write("stopped", t=t, client=self.who)

    def resume(self) -> None:
        self._log.write("resumed", client=self.who)
        self._signal(signal.SIGCONT)

    def catch(self, *whats: str) -> Event:
        """SIGSTOP, as soon as the last that it did is one of these; that event."""
        event = wait_until(lambda: self._caught(whats), interval=0.002)
        assert event
        self._log.write("stopped", client=self.who)
        return event

    def _caught(self, whats: Sequence[str]) -> Event | None:
        if (event := self.last()) is None or event["what"] not in whats:
            return None
        self._signal(signal.SIGSTOP)
        wait_until(self.is_stopped, interval=0.001)
        event = self.last()  # it may have gone on before it stopped
        if event and event["what"] in whats:
            return event
        self._signal(signal.SIGCONT)
        return None

    def stops_itself(self) -> None:
        """Return when it has done so."""
        wait_until(self.is_stopped, interval=0.001)
        self._log.write("stopped", client=self.who)

    def is_stopped(self) -> bool:
        """Whether all of its threads stand still."""
        with contextlib.suppress(FileNotFoundError):  # one that has just ended
            tasks = Path(f"/proc/{self.pid}/task").iterdir()
            stats = [(task / "stat").read_text().rpartition(")")[2] for task in tasks]
            return {stat.split()[0] for stat in stats} == {"T"}
        return False

    def end(self) -> None:
        """Let it end what it does and go; nothing it still holds is given back."""
        if self._process < 0:
            return
        self._answers.close()
        self._orders.close()
        self._signal(signal.SIGCONT)
        if not self._is_gone(5):
            self._signal(signal.SIGKILL)
            self._is_gone(10)
        os.close(self._process)
        self._process = -1

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def _is_gone(self, timeout: float) -> bool:
        return bool(select.select([self._process], [], [], timeout)[0])
