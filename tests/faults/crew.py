"""Handles of client processes, with which the harness sends orders, stops and kills them."""

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

from .events import Event, Follower, Log, at

CORE = "django.core.cache.backends.redis.RedisCache"
PREFIX = "faults"
KEYS = Keys(f"{PREFIX}:redislock")
ANSWER_TIMEOUT_SECONDS = 60


def caches(url: str, **options: Any) -> dict[str, Any]:
    """Return the setting CACHES of a client that uses one server."""
    entry = {"BACKEND": CORE, "LOCATION": url, "KEY_PREFIX": PREFIX, "OPTIONS": options}
    return {"default": entry}


class Crew:
    """A process that has imported everything, and forks clients. It exits when the process that
    started it does."""

    def __init__(self, **environment: str) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.client", str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def fork(self, order: dict[str, Any]) -> tuple[int, socket.socket]:
        """Fork a client, and return its process id and the socket for its orders."""
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
    """Return the shared crew of this environment."""
    crew = Crew(**environment)
    atexit.register(crew.close)
    return crew


class Client:
    """One client process. It executes orders one after another; `start` does not wait for them."""

    def __init__(
        self, crew: Crew, who: str, log: Log, caches: Mapping[str, Any], seed: str
    ) -> None:
        self.who = who
        self.died: float | None = None
        self._log = log
        order = {"who": who, "folder": str(log.folder), "caches": dict(caches), "seed": seed}
        self.pid, self._orders = crew.fork(order)
        self._unread = b""
        self._process = os.pidfd_open(self.pid)
        self._followed = Follower(log.folder, who)
        self._is_dismissed = False

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send an order and return the answer. Raises AssertionError on a timeout or a death."""
        self.start(do, **arguments)
        return self.answer()

    def start(self, do: str, **arguments: Any) -> None:
        self._orders.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def answer(self, *, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        """Return the answer to the oldest order whose answer was not yet read."""
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
        """End the client's loop, and return the loop's answer."""
        return finish_all([self])[0]

    # Its events

    def events(self) -> list[Event]:
        return self._followed.events()

    def last(self, *whats: str) -> Event | None:
        """Return the client's last event, or the last of the given kinds."""
        events = reversed(self.events())
        return next((each for each in events if not whats or each["what"] in whats), None)

    def wait_for(self, what: str, *, after: float = 0, timeout: float = 20) -> Event:
        """Wait for the first event `what` after the time `after`, and return it."""

        def found() -> Event | None:
            events = (each for each in self.events() if each["what"] == what)
            return next((each for each in events if each["t"] > after), None)

        return wait_until(found, timeout=timeout, interval=0.002)  # type: ignore[return-value]

    # Faults

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is dead."""
        kill_all([self])

    def stop(self) -> Event:
        """Stop the process with SIGSTOP, and wait until it is stopped."""
        t = now()
        self._signal(signal.SIGSTOP)
        wait_until(self.is_stopped, interval=0.001)
        return self._log.write("stopped", t=t, at=at(), client=self.who)

    def resume(self) -> Event:
        event = self._log.write("resumed", client=self.who)
        self._signal(signal.SIGCONT)
        return event

    def catch(self, *whats: str) -> Event:
        """Stop the process as soon as its last event is one of `whats`."""
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
            self._signal(signal.SIGCONT)  # it logged another event before it stopped
        return False

    def stops_itself(self) -> Event:
        """Wait until the process has stopped itself."""
        wait_until(self.is_stopped, interval=0.001)
        return self._log.write("stopped", client=self.who)

    def is_stopped(self) -> bool:
        """Return whether all threads of the process are stopped."""
        with contextlib.suppress(FileNotFoundError):  # a thread has just ended
            tasks = Path(f"/proc/{self.pid}/task").iterdir()
            stats = [(task / "stat").read_text().rpartition(")")[2] for task in tasks]
            return {stat.split()[0] for stat in stats} == {"T"}
        return False

    def dismiss(self) -> None:
        """Let the client finish its order and exit. `end` waits for the exit."""
        if not self._is_dismissed:
            self._is_dismissed = True
            self._orders.close()
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End the process, if necessary with SIGKILL. It does not release its locks."""
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
    """End the loops of several clients at the same time, and return the loops' answers."""
    for client in clients:
        client.start("sleep", seconds=0)
    answers = [client.answer() for client in clients]
    for client in clients:
        client.answer()
    return answers


def kill_all(clients: Iterable[Client]) -> None:
    """Kill all clients at the same time with SIGKILL."""
    killed = [(client, now(), client._signal(signal.SIGKILL)) for client in clients]
    for client, t, _ in killed:
        assert client._is_gone(20), f"{client.who} survived SIGKILL"
        client.died = now()
        client._log.write("killed", t=t, at=at(), client=client.who, dead=client.died)
