"""``python -m benchmarks.scale`` measures the load that one server carries and that three servers
carry, and writes the results to a page."""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from redis.crc import key_slot

from django_redislock.keys import BUCKETS, Keys
from tests.faults.table import markdown, write
from tests.servers import Cluster, Node
from tests.servers.cluster import SLOTS

from ..bench import places, report
from ..bench.crew import Crew
from ..bench.figure import number, quantiles
from ..bench.rounds import interleaved

BEGIN = "<!-- scale: written by `make scale` -->"
END = "<!-- scale: end -->"

LOCKS, REPLAYED = "`locks.lock`", "the same commands, replayed"
PROCESSES = {LOCKS: (1, 2, 4), REPLAYED: (1, 2)}

MASTERS = 3
SPREAD_OVER = (1, 2, 3, 4, 5, 6, 8, 12, 16)


Load = tuple[int, str, int]  # number of servers, type of client, number of processes


@dataclass(frozen=True)
class Carried:
    """The result of a load."""

    per_second: float  # cycles
    of_core: float  # processor time of the busiest server
    microseconds: float  # processor time of all servers for a cycle


def main() -> int:
    options = _options()
    most = max(max(each) for each in PROCESSES.values())
    with Node() as node:
        places.set_up(node.url)
        from tests.faults.work import use_cluster

        from .clients import prepare

        keys = Keys(places.KEYS)
        with Cluster(masters=MASTERS, replicas=0) as cluster:
            prepare([node, *cluster.nodes])
            with (
                Crew(most, {"default": node.url}) as one,
                Crew(most, {"default": node.url}) as several,
            ):
                several.order(most, use_cluster, cluster.startup)
                contenders = {}
                for crew, nodes in ((one, [node]), (several, cluster.nodes)):
                    of_slot = cluster.owner if crew is several else lambda slot: node
                    owners = {each: of_slot(_slot(keys, each)).address for each in range(BUCKETS)}
                    for who, counts in PROCESSES.items():
                        for processes in counts:
                            arguments = who, keys, owners, options.seconds
                            run = partial(_run, nodes, crew, processes, *arguments)
                            contenders[len(nodes), who, processes] = run
                random = Random(options.seed)
                found = interleaved(contenders, options.rounds, random, warm=False)
        where = report.where_it_ran(node)
    text = f"{where}\n\n{_table(found)}\n\n{_spread(keys)}"
    print(text)
    if options.write:
        write(options.write, text, BEGIN, END)
    return 0


def _run(nodes: Sequence[Node], crew: Crew, processes: int, who: str, *arguments: Any) -> Carried:
    from . import clients  # needs the settings

    before, began = [_cpu(node) for node in nodes], time.monotonic()
    ask = {LOCKS: clients.by_locks, REPLAYED: clients.replayed}[who]
    cycles = sum(crew.order(processes, ask, *arguments))
    lasted = time.monotonic() - began
    used = [_cpu(node) - then for node, then in zip(nodes, before, strict=True)]
    return Carried(cycles / lasted, max(used) / lasted, sum(used) / cycles * 1e6)


def _slot(keys: Keys, bucket: int) -> int:
    return int(key_slot(keys.inspect(bucket)[0].encode()))


def _cpu(node: Node) -> float:
    cpu = node.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


# Output


def _table(found: dict[Load, list[Carried]]) -> str:
    head = (
        *("Servers", "Load", "Processes", "Cycles per second", "Spread"),
        *("Busiest server, of a core", "Server CPU time per cycle", "Estimate for a full core"),
    )
    rule = ("--:", "---", "--:", "--:", "--:", "--:", "--:", "--:")
    rows = [_row(load, rounds) for load, rounds in found.items()]
    return markdown(head, rule, *rows)


def _row(load: Load, rounds: Sequence[Carried]) -> tuple[str, ...]:
    servers, who, processes = load
    low, middle, high = quantiles([each.per_second for each in rounds])
    microseconds = statistics.median(each.microseconds for each in rounds)
    return (
        f"{servers}",
        who,
        f"{processes}",
        _hundreds(middle),
        f"{_hundreds(low)} to {_hundreds(high)}",
        f"{statistics.median(each.of_core for each in rounds):.0%}",
        f"{microseconds:.0f} µs",
        f"{_hundreds(1e6 / microseconds)} per second",
    )


def _hundreds(value: float) -> str:
    return number(float(round(value, -2)))


def _spread(keys: Keys) -> str:
    """Return a table of the buckets per primary if the slots are distributed evenly."""
    head = ("Primaries", "Buckets on each primary", "Capacity in servers")
    rows = [head, ("--:", "---", "--:")]
    for primaries in SPREAD_OVER:
        ends = [SLOTS * (place + 1) // primaries for place in range(primaries)]
        of_each = [0] * primaries
        for bucket in range(BUCKETS):
            slot = _slot(keys, bucket)
            of_each[next(place for place, end in enumerate(ends) if slot < end)] += 1
        most = BUCKETS / max(of_each)
        counts = ", ".join(map(str, sorted(of_each, reverse=True)))
        rows.append((str(primaries), counts, number(most)))
    return markdown(*rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each load")
    parser.add_argument("--seed", type=int, help="seed of the order of the loads")
    parser.add_argument("--write", type=Path, help="write the tables into this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
