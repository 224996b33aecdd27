"""Measures for how long the server and a second client are kept busy by what a test does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import redis

from .tools import Child

PINGS = """
import threading, time, redis
client = redis.Redis.from_url(sys.argv[1])
while hear() == "start":
    stop = threading.Event()
    threading.Thread(target=lambda: (hear(), stop.set())).start()
    client.ping()
    say("started")
    longest = 0.0
    while not stop.is_set():
        begun = time.perf_counter()
        client.ping()
        longest = max(longest, time.perf_counter() - begun)
        time.sleep(0.001)
    say(f"longest {longest}")
"""


@dataclass(frozen=True)
class Stall:
    server: float
    """Longest time in seconds that the server ran the commands of one round trip."""

    second_client: float
    """Longest time in seconds that a second client waited for the answer to a PING."""


class Stalls:
    """Measures stalls of one server. The second client is a process of its own."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._pings = Child(PINGS, url)

    def __enter__(self) -> "Stalls":
        return self

    def __exit__(self, *error: object) -> None:
        self._pings.__exit__(None, None, None)
        self._client.close()

    def of(self, do: Callable[[], Any], *, below: float, times: int = 3) -> Stall:
        """Run `do` until the server's time is below that many seconds, `times` at most.

        The server's time includes time in which the machine ran another process.
        """
        stalls: list[Stall] = []
        while len(stalls) < times and not (stalls and stalls[-1].server < below):
            stalls.append(self._of(do))
        return Stall(
            min(each.server for each in stalls), min(each.second_client for each in stalls)
        )

    def _of(self, do: Callable[[], Any]) -> Stall:
        self._pings.tell("start")
        self._pings.expect("started")
        with self._server_times() as times:
            do()
        self._pings.tell("stop")
        longest = float(self._pings.expect("longest", timeout=120))
        return Stall(max(after - before for before, after in pairwise(times)), longest)

    @contextmanager
    def _server_times(self) -> Iterator[list[float]]:
        """The seconds that scripts have taken so far, as of each round trip of this process."""
        times: list[float] = []
        send = redis.Connection.send_packed_command
        asking = False

        def noted(connection: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal asking
            if not asking:
                asking = True
                times.append(seconds_in_scripts(self._client))
                asking = False
            return send(connection, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(redis.Connection, "send_packed_command", noted)
            yield times
        times.append(seconds_in_scripts(self._client))


def seconds_in_scripts(client: redis.Redis) -> float:
    stats = client.info("commandstats")
    used = [stats.get(f"cmdstat_{each}", {}).get("usec", 0) for each in ("eval", "evalsha")]
    return sum(used) / 1_000_000
