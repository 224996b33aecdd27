"""``python -m benchmarks.scale`` measures the load that one server carries, and whether three
servers with a cache alias each carry three times as much. It writes the results to a page."""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from tests.faults.table import markdown, write
from tests.servers import Node

from ..bench import places, report
from ..bench.crew import Crew
from ..bench.figure import number, quantiles
from ..bench.rounds import interleaved

BEGIN = "<!-- scale: written by `make scale` -->"
END = "<!-- scale: end -->"

LOCKS, REPLAYED = "`locks.lock`", "the same commands, replayed"
"""What a process sends to one server."""

ALIASES = "default", "second", "third"
"""The cache aliases, each with a server of its own."""

LOCKS_OF_PROCESS, LOCKS_WITH_SHARE = 30, 300
"""Locks of each alias. A server with a share of a core responds late, so it needs more of them to
be busy in between."""

SHARE = 6
"""In the comparison of one server with three, each gets a sixth of a core, and the process that
loads them has another core. So it can load them all, and a server gets as much processor time
beside others as alone."""

IDLE_LOOP = "while True: pass"


@dataclass(frozen=True)
class Carried:
    """The result of a load."""

    per_second: float  # cycles
    of_core: float  # processor time of the busiest server
    microseconds: float  # processor time of all servers for a cycle


def main() -> int:
    options = _options()
    with ExitStack() as stack:
        servers = {alias: stack.enter_context(Node()) for alias in ALIASES}
        places.set_up(servers["default"].url)
        urls = {alias: node.url for alias, node in servers.items()}
        crew = stack.enter_context(Crew(1, urls))
        run = partial(_run, crew, seconds=options.seconds)
        random = Random(options.seed)
        one = {"default": servers["default"]}
        loads = {load: partial(run, one, load) for load in (LOCKS, REPLAYED)}
        carried = interleaved(loads, options.rounds, random, warm=False)
        shared = {len(some): partial(_run_with_shares, run, some) for some in (one, servers)}
        [pid] = crew.order(1, os.getpid)
        _move(pid, _other_cores())
        for node in servers.values():
            _move(node.pid, _first_core())
        compared = interleaved(shared, options.rounds, random, warm=False)
        where = report.where_it_ran(servers["default"])
    text = f"{where}\n\n{_table(carried)}\n\n{_comparison(compared)}"
    print(text)
    if options.write:
        write(options.write, text, BEGIN, END)
    return 0


def _run(
    crew: Crew,
    servers: Mapping[str, Node],
    load: str,
    locks: int = LOCKS_OF_PROCESS,
    *,
    seconds: float,
) -> Carried:
    from . import clients  # needs the settings

    nodes = [*servers.values()]
    addresses = {alias: node.address for alias, node in servers.items()}
    crew.order(1, clients.prepare, addresses, locks)
    before, began = [_cpu(node) for node in nodes], time.monotonic()
    ask = {LOCKS: clients.by_locks, REPLAYED: clients.replayed}[load]
    [cycles] = crew.order(1, ask, seconds)
    lasted = time.monotonic() - began
    used = [_cpu(node) - then for node, then in zip(nodes, before, strict=True)]
    return Carried(cycles / lasted, max(used) / lasted, sum(used) / cycles * 1e6)


def _run_with_shares(run: "partial[Carried]", servers: Mapping[str, Node]) -> Carried:
    with _idle_loops(SHARE - len(servers)):
        return run(servers, REPLAYED, LOCKS_WITH_SHARE)


@contextmanager
def _idle_loops(count: int) -> Iterator[None]:
    """Have processes that take their share of the core of the servers."""
    loops = [
        # In sessions of their own, like the servers, because Linux shares a core among sessions.
        subprocess.Popen([sys.executable, "-c", IDLE_LOOP], start_new_session=True)
        for _ in range(count)
    ]
    try:
        for loop in loops:
            _move(loop.pid, _first_core())
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _move(pid: int, cores: set[int]) -> None:
    """Move a process to cores, where it gets as much time as others that were moved there."""
    os.sched_setaffinity(pid, cores)
    with suppress(PermissionError):  # only root may take precedence over other programs
        os.setpriority(os.PRIO_PROCESS, pid, -10)


def _first_core() -> set[int]:
    return {min(os.sched_getaffinity(0))}


def _other_cores() -> set[int]:
    return os.sched_getaffinity(0) - _first_core()


def _cpu(node: Node) -> float:
    cpu = node.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


# Output


def _table(found: Mapping[str, list[Carried]]) -> str:
    head = (
        *("Load of one process on one server", "Cycles per second", "Spread"),
        *("Server, of a core", "Server CPU time per cycle", "Estimate for a full core"),
    )
    rule = ("---", "--:", "--:", "--:", "--:", "--:")
    return markdown(head, rule, *(_row(load, rounds) for load, rounds in found.items()))


def _row(load: str, rounds: Sequence[Carried]) -> tuple[str, ...]:
    middle, spread = _rate(rounds)
    microseconds = statistics.median(each.microseconds for each in rounds)
    return (
        load,
        _hundreds(middle),
        spread,
        f"{statistics.median(each.of_core for each in rounds):.0%}",
        f"{microseconds:.0f} µs",
        f"{_hundreds(1e6 / microseconds)} per second",
    )


def _comparison(found: Mapping[int, list[Carried]]) -> str:
    """Return a table of the rates of one server and of several, each with a share of a core."""
    head = (
        *("Servers and aliases", "Cycles per second", "Spread"),
        *("Busiest server, of a core", "Times the rate of one"),
    )
    rows = []
    for servers, rounds in found.items():
        middle, spread = _rate(rounds)
        of_core = statistics.median(each.of_core for each in rounds)
        times = f"{middle / _rate(found[1])[0]:.2f}"
        rows.append((f"{servers}", _hundreds(middle), spread, f"{of_core:.0%}", times))
    return markdown(head, ("--:",) * 5, *rows)


def _rate(rounds: Sequence[Carried]) -> tuple[float, str]:
    low, middle, high = quantiles([each.per_second for each in rounds])
    return middle, f"{_hundreds(low)} to {_hundreds(high)}"


def _hundreds(value: float) -> str:
    return number(float(round(value, -2)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each load")
    parser.add_argument("--seed", type=int, help="seed of the order of the loads")
    parser.add_argument("--write", type=Path, help="write the tables into this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
