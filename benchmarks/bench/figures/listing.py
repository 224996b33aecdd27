"""Listing locks among many locks and very many other keys."""

import time
import tracemalloc
from functools import partial

import redis

from django_redislock import locks

from ..contenders import OURS, client_of
from ..figure import Bench, Figure, Line, Plot, middle, quantiles, ratios
from ..places import KEYS, fill_up
from ..rounds import interleaved

SHOWN = 100


def listing(bench: Bench) -> Figure:
    active, others = bench.size(100_000, 50_000), bench.size(1_000_000, 200_000)
    client = client_of(bench.url)
    client.execute_command("DEBUG", "POPULATE", others, "other", 10)
    few = active // 10
    fill_up(None, bench.url, 0, few)
    peak_of_few = _peak(few)
    fill_up(None, bench.url, few, active)
    peak = _peak(active)
    found = interleaved(
        {
            "page": _page,
            "scan": partial(_scan, client, active),
            "ends": partial(_scan, client, active, ends=True),
        },
        bench.rounds(12),
        bench.random,
    )
    faster = ratios(found["scan"], found["page"])
    as_much = quantiles(ratios(found["ends"], found["page"]))[1]
    return Figure(
        f"{SHOWN} of {active:,} locks, among {others:,} other keys",
        (
            Line.of("times faster than SCAN MATCH", faster),
            Line.of(f"memory to stream {active:,} locks / {few:,} locks", [peak / peak_of_few]),
        ),
        (
            Plot(
                "listing",
                f"Listing the {SHOWN} of {active:,} locks that expire first",
                "ms",
                {
                    f"{OURS}, `page`": middle(found, "page") * 1000,
                    "SCAN MATCH": middle(found, "scan") * 1000,
                },
            ),
        ),
        (
            f"Times faster than SCAN MATCH and PTTL of each key, which give the same information: "
            f"{as_much:.0f}.",
            f"Peak memory to stream {active:,} locks: {peak / 2**20:.1f} MiB.",
        ),
    )


def _peak(count: int) -> int:
    """Return the peak memory in bytes while all locks are streamed."""
    sum(1 for _ in locks.active())  # warm up
    tracemalloc.start()
    assert sum(1 for _ in locks.active()) == count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def _page() -> float:
    begun = time.perf_counter()
    assert len(locks.page(stop=SHOWN).infos) == SHOWN
    return time.perf_counter() - begun


def _scan(client: redis.Redis, active: int, *, ends: bool = False) -> float:
    """Count the locks, which needs a scan of all keys without an index. With `ends`, also find the
    leases that expire first."""
    begun = time.perf_counter()
    found = list(client.scan_iter(match=f"{{{KEYS}}}:lock:*", count=1000))
    assert len(found) == active
    if ends:
        ttls: list[int] = []
        for at in range(0, active, 1000):
            batch = client.pipeline(transaction=False)
            for key in found[at : at + 1000]:
                batch.pttl(key)
            ttls += batch.execute()
        assert len(sorted(zip(ttls, found, strict=True))[:SHOWN]) == SHOWN
    return time.perf_counter() - begun
