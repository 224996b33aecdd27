"""A Memcached server on a unix socket."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.programs import find
from tests.tools import wait_until

from .processes import start


class Memcached:
    """A server that keeps its socket in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "socket"
        command = [find("memcached"), "-u", "root", "-s", str(self._path)]
        self._process = start(command, folder / "log", {})
        wait_until(self._answers)

    @property
    def location(self) -> str:
        """The LOCATION of Django's `PyMemcacheCache`."""
        return f"unix:{self._path}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._path)) == 0


@contextlib.contextmanager
def memcached() -> Iterator[Memcached]:
    """Run a server in the block."""
    with tempfile.TemporaryDirectory(prefix="redislock-") as folder:
        server = Memcached(Path(folder))
        try:
            yield server
        finally:
            server.kill()
