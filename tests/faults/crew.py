"""Clients, as the harness has them: to ask, to stop, to kill."""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from django_redislock.clock import now
from django_redislock.keys import Keys
from tests.tools import ROOT, wait_until

from .events import Event, Follower, Log

CORE = "django.core.cache.backends.redis.RedisCache"
PREFIX = "faults"
KEYS = Keys(f"{PREFIX}:redislock")
LONGEST = 60  # seconds that an answer may take


def caches(url: str, **options: Any) -> dict[str, Any]:
    """The setting CACHES of a client, on one server."""
    entry = {"BACKEND": CORE, "LOCATION": url, "KEY_PREFIX": PREFIX, "OPTIONS": options}
    return {"default": entry}


class Crew:
    """Where clients come from: one process that has imported everything, and forks them.

    `python`, `module` and `environment` are for clients of another make: other libraries, gevent,
    another clock, another release of the product. It ends with the process that started it.
    """

    def __init__(
        self,
        *,
        python: str = sys.executable,
        module: str = "tests.faults.client",
        **environment: str,
    ) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [python, "-m", module, str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def fork(self, order: dict[str, Any]) -> tuple[int, socket.socket]:
        """A client as that order says: its process, and the socket where it takes orders."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            socket.send_fds(self._requests, [json.dumps(order).encode()], [theirs.fileno()])
            answer = self._requests.recv(64)
        assert answer, "the process that forks clients has ended"
        return int(answer), ours

    def close(self) -> None:
        self._requests.close()
        self._process.wait(10)


@cache
def usual_crew(**environment: str) -> Crew:
    """The crew of this Python and environment; one is enough for all."""
    crew = Crew(**environment)
    atexit.register(crew.close)
    return crew


class Client:
    """One process. It does one thing after the other; `start` does not wait until it is done."""

    def __init__(
        self, crew: Any, who: str, log: Log, caches: Mapping[str, Any], seed: str
    ) -> None:
        """Fork it from a `crew`, or from another client that does the same."""
        self.who = who
        self.died: float | None = None
        self._log = log
        order = {"who": who, "folder": str(log.folder), "caches": dict(caches), "seed": seed}
        self.pid, self._orders = crew.fork(order)
        self._unread = b""
        self._process = os.pidfd_open(self.pid)
        self._followed = Follower(log.folder, who)
        self._is_dismissed = False

    def ask(self, do: str, **told: Any) -> Any:
        """What it answers. AssertionError if that takes too long, or it dies."""
        self.start(do, **told)
        return self.answer()

    def start(self, do: str, **told: Any) -> None:
        self._orders.sendall(json.dumps({"do": do, **told}).encode() + b"\n")

    def answer(self, *, timeout: float = LONGEST) -> Any:
        """What it answers to the first order that it was not yet asked about."""
        assert self.has_answered(timeout), f"{self.who} did not answer within {timeout} s"
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def has_answered(self, timeout: float = 0) -> bool:
        deadline = now() + timeout
        while b"\n" not in self._unread:
            if not select.select([self._orders], [], [], max(0, deadline - now()))[0]:
                return False
            answered = self._orders.recv(65536)
            assert answered, f"{self.who} ended without an answer"
            self._unread += answered
        return True

    def finish(self) -> Any:
        """Have it end a loop, and return what that answers."""
        return finish_all([self])[0]

    # What it did

    def events(self) -> list[Event]:
        return self._followed.events()

    def last(self, *whats: str) -> Event | None:
        """Its last event (of these kinds)."""
        events = reversed(self.events())
        return next((each for each in events if not whats or each["what"] in whats), None)

    def wait_for(self, what: str, *, after: float = 0, timeout: float = 20) -> Event:
        """The first such event after that time, as soon as it has happened."""

        def found() -> Event | None:
            events = (each for each in self.events() if each["what"] == what)
            return next((each for each in events if each["t"] > after), None)

        return wait_until(found, timeout=timeout, interval=0.002)  # type: ignore[return-value]

    # What is done to it

    def kill(self) -> None:
        """SIGKILL; it is no more when this returns."""
        kill_all([self])

    def stop(self) -> Event:
        """SIGSTOP; it stands still when this returns."""
        t = now()
        self._signal(signal.SIGSTOP)
        wait_until(self.is_stopped, interval=0.001)
        return self._log.write("stopped", t=t, client=self.who)

    def resume(self) -> Event:
        event = self._log.write("resumed", client=self.who)
        self._signal(signal.SIGCONT)
        return event

    def catch(self, *whats: str) -> Event:
        """SIGSTOP, as soon as the last that it did is one of these."""
        wait_until(lambda: self._is_caught(whats), interval=0.002)
        return self._log.write("stopped", client=self.who)

    def _is_caught(self, whats: Sequence[str]) -> bool:
        def has_done() -> bool:
            event = self.last()
            return event is not None and event["what"] in whats

        if has_done():
            self._signal(signal.SIGSTOP)
            wait_until(self.is_stopped, interval=0.001)
            if has_done():
                return True
            self._signal(signal.SIGCONT)  # it had gone on before it stopped
        return False

    def stops_itself(self) -> Event:
        """Return when it has done so."""
        wait_until(self.is_stopped, interval=0.001)
        return self._log.write("stopped", client=self.who)

    def is_stopped(self) -> bool:
        """Whether all of its threads stand still."""
        with contextlib.suppress(FileNotFoundError):  # one that has just ended
            tasks = Path(f"/proc/{self.pid}/task").iterdir()
            stats = [(task / "stat").read_text().rpartition(")")[2] for task in tasks]
            return {stat.split()[0] for stat in stats} == {"T"}
        return False

    def dismiss(self) -> None:
        """Ask nothing more of it: it ends what it does and goes; `end` waits until it is gone."""
        if not self._is_dismissed:
            self._is_dismissed = True
            self._orders.close()
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Have it gone. What it still holds is not given back."""
        self.dismiss()
        if not self._is_gone(5):
            self._signal(signal.SIGKILL)
            self._is_gone(10)
            self._log.write("ended", client=self.who, dead=now())
        os.close(self._process)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def _is_gone(self, timeout: float) -> bool:
        return bool(select.select([self._process], [], [], timeout)[0])


def finish_all(clients: Sequence[Client]) -> list[Any]:
    """Have clients end their loops at the same time: what these answer."""
    for client in clients:
        client.start("sleep", seconds=0)
    answers = [client.answer() for client in clients]
    for client in clients:
        client.answer()
    return answers


def kill_all(clients: Iterable[Client]) -> None:
    """SIGKILL for all of them at a time."""
    killed = [(client, now(), client._signal(signal.SIGKILL)) for client in clients]
    for client, t, _ in killed:
        assert client._is_gone(20), f"{client.who} survived SIGKILL"
        client.died = now()
        client._log.write("killed", t=t, client=client.who, dead=client.died)
