"""(g) What a lock costs the server: its time, its memory, and what is left."""

from functools import partial

import redis

from django_redislock import locks
from tests.tools import leftovers

from ..contenders import BARE, OURS, REDIS_PY, SAME, client_of, contender
from ..figure import Bench, Figure, Line, Plot
from ..places import KEYS, Commands
from ..rounds import cycles, interleaved

BY_CLIENTS = ("set", "evalsha")
"""By any of them. A script's time has in it that of what it calls, which is none of these."""


OF_ALL = OURS, REDIS_PY, BARE, SAME


def server(bench: Bench) -> Figure:
    client, url = client_of(bench.node.url), bench.node.url
    many, held = bench.count(500, 50), bench.count(5000, 500)
    contenders = {label: partial(_seconds, client, label, url, many) for label in OF_ALL}
    found = interleaved(contenders, bench.rounds(20), bench.random)
    size = _bytes(client, held)
    with redis.Redis.from_url(url, decode_responses=True) as reader:
        left = leftovers(reader)
    what = "the server's time / that of the bare two"
    return Figure(
        "On the server",
        (
            Line.ratio(what, found, OURS, BARE, "at most", 3, SAME),
            Line.of("memory of a held lock", [size], "at most", 1024, " B"),
            Line.of("keys left after the release", [float(len(left))], "exactly", 0),
        ),
        (Plot.of("server", "The server's time for a cycle", "µs", found, 1e6),),
    )


def _seconds(client: redis.Redis, label: str, url: str, many: int) -> float:
    lock = contender(label, url, "server")
    with Commands(client) as commands:
        cycles(lock, many)
    return commands.took(*BY_CLIENTS) / 1e6 / many


def _bytes(client: redis.Redis, count: int) -> float:
    """Of all keys that are there for held locks, by lock."""
    held = [locks.lock(f"held:{number}") for number in range(count)]
    for lock in held:
        lock.acquire()
    keys = [
        key for key in client.scan_iter(match=f"{KEYS}:*", count=1000) if b":history:" not in key
    ]
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key, samples=0)
    total = sum(pipeline.execute())
    for lock in held:
        lock.release()
    return total / count
