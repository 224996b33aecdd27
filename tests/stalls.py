"""Measures how long the server is busy with one round trip."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import redis


def longest_round_trip(url: str, do: Callable[[], Any], *, below: float, times: int = 3) -> float:
    """Return the longest time in seconds that the server ran the scripts of one round trip.

    `do` runs again until that is below `below`, `times` at most, because the server's time
    includes time in which the machine ran another process.
    """
    longest = float("inf")
    with redis.Redis.from_url(url) as client:
        for _ in range(times):
            with server_times(client) as seconds:
                do()
            longest = min(longest, max(after - before for before, after in pairwise(seconds)))
            if longest < below:
                break
    return longest


@contextmanager
def server_times(client: redis.Redis) -> Iterator[list[float]]:
    """The seconds that scripts have taken so far, as of each round trip of this process."""
    times: list[float] = []
    send = redis.Connection.send_packed_command
    asking = False

    def noted(connection: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal asking
        if not asking:
            asking = True
            times.append(seconds_in_scripts(client))
            asking = False
        return send(connection, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.Connection, "send_packed_command", noted)
        yield times
    times.append(seconds_in_scripts(client))


def seconds_in_scripts(client: redis.Redis) -> float:
    stats = client.info("commandstats")
    used = [stats.get(f"cmdstat_{each}", {}).get("usec", 0) for each in ("eval", "evalsha")]
    return sum(used) / 1_000_000
