"""One server process: `Node`."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import processes
from .certificates import Certificates
from .makes import binary

START_STOP_SECONDS = (
    30  # seconds that a server is given to come up, and to stop when it is asked to
)

READY = (b"eady to accept connections", b"Sentinel ID is")
FIXED: dict[str, Any] = {"save": "", "appendonly": "no", "repl_diskless_sync_delay": 0}
"""Of each, unless told otherwise. A primary would let its first replica wait for others."""


class Running:
    """Servers that are started and closed by ``with``."""

    def start(self) -> Self:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def _answers(self, nodes: Iterable["Node"], *command: str) -> Iterator[Any]:
        """Yield the reply of each node that responds."""
        for node in nodes:
            with suppress(redis.ConnectionError, redis.TimeoutError):
                yield node.ask(*command)


class Node(Running):
    """A server on 127.0.0.1, or on a unix socket, with its data in a temporary folder.

    `config` has lines of its config file (``maxmemory_policy="noeviction"``). A tuple is several
    lines with that name. `environment` has additional environment variables. With `tls` the server
    accepts only TLS, which only Debian's Redis supports.

    `start` raises `Missing` if the make is not installed, and `RuntimeError` with the end of the
    log if the server does not start.
    """

    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        make: str | None = None,
        *,
        tls: Certificates | None = None,
        unix: bool = False,
        environment: dict[str, str] | None = None,
        **config: Any,
    ) -> None:
        self.make = make or ("redis-7.0" if tls else "valkey-9.1")
        self.port = 0 if unix else processes.free_port()
        self.tls = tls
        self.environment = environment or {}
        self.config = FIXED | (tls.server if tls else {}) | config
        self._may_move = not unix
        self._clients: weakref.WeakSet[redis.Redis] = weakref.WeakSet()
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-"))
        self._remove = weakref.finalize(self, _remove, self.folder, os.getpid())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.make} at {self.url}>"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self} was not started"
        return self.process.pid

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        """Where database 0 is."""
        return f"{self._place}/0" if self.port else f"{self._place}?db=0"

    @property
    def _place(self) -> str:
        if not self.port:
            return f"unix://{self.socket}"
        return f"redis{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether there is a process; it may be paused."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it answers, with all its data loaded."""
        assert not self.is_running, f"{self} is running"
        # Another program may take a free port before our server does: then try the next.
        for _ in range(5):
            if self._comes_up():
                self._may_move = False
                return self
            if not (self._may_move and "in use" in self.log):
                break
            (self.folder / "config").unlink()
            self.port = processes.free_port()
        self.kill()
        raise RuntimeError(f"{self} did not start:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """SIGTERM: it saves what its config says and ends. Once stopped, does nothing."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: it has no chance to save anything; the folder stays."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def client(self, **options: Any) -> redis.Redis:
        """A plain client of redis-py, closed with the node."""
        options = {"decode_responses": True} | self._certificates | options
        client = redis.Redis.from_url(self._place, **options)
        self._clients.add(client)
        return client

    def ask(self, *command: Any) -> Any:
        """The server's own answer to one command, in a connection of its own; asked once."""
        with redis.Redis.from_url(
            self.url,
            **self._certificates,
            decode_responses=True,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=1,
        ) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def info(self, section: str) -> dict[str, str]:
        lines = self.ask("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def configure(self, **config: Any) -> None:
        """CONFIG SET, which also a later start keeps."""
        self.config |= config
        for name, value in config.items():
            self.ask("CONFIG", "SET", name.replace("_", "-"), value)
        self.ask("CONFIG", "REWRITE")

    def close(self) -> None:
        """Kill it, close its clients, remove its folder."""
        self.kill()
        for client in self._clients:
            client.close()
        self._remove()

    @property
    def _certificates(self) -> dict[str, Any]:
        return self.tls.shown if self.tls else {}

    def _comes_up(self) -> bool:
        config, log = self.folder / "config", self.folder / "log"
        if not config.exists():
            config.write_text("".join(f"{line}\n" for line in self._lines()))
        said_before = log.stat().st_size if log.exists() else 0
        command = [str(binary(self.make)), str(config), *self.arguments]
        self.process = processes.start(command, log, self.environment)
        deadline = time.monotonic() + START_STOP_SECONDS
        while self.is_running and time.monotonic() < deadline:
            # A PING alone might be answered by another server that took the port.
            said = log.read_bytes()[said_before:]
            if any(words in said for words in READY) and self._responds():
                return True
            time.sleep(0.005)
        return False

    def _responds(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except (redis.AuthenticationError, redis.NoPermissionError):
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def _lines(self) -> list[str]:
        lines = ["bind 127.0.0.1", f"dir {self.folder}"]
        if not self.port:
            lines += ["port 0", f"unixsocket {self.socket}"]
        elif self.tls:
            lines += ["port 0", f"tls-port {self.port}"]
        else:
            lines += [f"port {self.port}"]
        for option, value in self.config.items():
            values = value if isinstance(value, tuple) else (value,)
            name = option.replace("_", "-")
            lines += [f"{name} {each}" if each != "" else f'{name} ""' for each in values]
        return lines

    def _end(self, number: signal.Signals) -> None:
        if self.process is None or not self.is_running:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(START_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _remove(folder: Path, owner: int) -> None:
    # A forked child has a copy of the object, but the folder is its parent's.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
