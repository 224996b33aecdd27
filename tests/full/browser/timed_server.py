"""A Valkey server whose clock the test sets, so that an hour passes in a second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import redis

from tests.servers import Node
from tests.servers.clock import Clock
from tests.tools import wait_until


class TimedServer:
    def __init__(self, node: Node, file: Path) -> None:
        self.url = node.url
        self.client: redis.Redis = node.client()
        self._file = file

    @classmethod
    @contextmanager
    def running(cls, folder: Path, since: datetime) -> Iterator["TimedServer"]:
        """Start a server whose clock shows `since`."""
        file = folder / "time"
        clock = Clock(file)
        clock.move(since.timestamp() - time.time())
        with Node(unix=True, environment=clock.environment | {"TZ": "UTC"}) as node:
            yield cls(node, file)

    def stop_at(self, moment: datetime) -> None:
        """Stop the clock at `moment`, or up to a millisecond later."""
        self._write(f"{moment:%F %T}.{moment.microsecond // 1000:03}")
        wait_until(lambda: abs(self._now() - moment.timestamp()) < 0.01, interval=0.001)

    def go_from(self, moment: datetime) -> None:
        """Let the clock run from `moment` on."""
        self._write(f"{moment.timestamp() - time.time():+.3f}s")
        wait_until(lambda: self._now() >= moment.timestamp(), interval=0.001)

    def _now(self) -> float:
        seconds, microseconds = self.client.time()
        return seconds + microseconds / 1_000_000

    def _write(self, text: str) -> None:
        # Renamed, so that the server never reads an incomplete file.
        new = self._file.with_suffix(".new")
        new.write_text(text)
        new.rename(self._file)
