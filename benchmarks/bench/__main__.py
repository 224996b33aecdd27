"""``python -m benchmarks.bench`` measures all figures, prints the table, and ends with 0 if
every line holds."""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.servers import Node
from tests.tools import ROOT

from . import report, rounds
from .figure import Bench, Figure, number
from .proxy import Proxy
from .run import measured_figures


def main() -> int:
    options = _options()
    measured = {}
    with Node(enable_debug_command="local") as node:
        remarks = [report.where_it_ran(node)]
        for round_trip in options.round_trip:
            measured[round_trip], more = _measured(round_trip, node, options)
            remarks += more
    where = "; ".join(remarks)
    print(f"\n{where}\n\n{report.table(measured)}")
    if options.write:
        report.put_on(options.write, ROOT / "docs" / "images", measured, where)
    return 0 if report.ends_well(measured) else 1


def _measured(
    round_trip: float, node: Node, options: argparse.Namespace
) -> tuple[dict[str, Figure], list[str]]:
    """Return the figures for a network, and remarks on the run.

    They are measured in a new process, because Django and Celery read the server's address once.
    """
    remarks = []
    with ExitStack() as stack:
        url = node.url
        if round_trip:
            proxy = stack.enter_context(Proxy(node.url, round_trip / 1000))
            url = proxy.url
            remarks.append(
                f"{report.distance(round_trip)}: a PING takes "
                f"{number(proxy.measured_round_trip() * 1000)} ms, and the proxy carries "
                f"{number(round(proxy.measured_limit(), -2))} round trips per second"
            )
        bench = Bench(
            url=url,
            direct_url=node.url,
            round_trip=round_trip / 1000,
            quick=options.quick,
            given_rounds=options.rounds,
            random=Random(options.seed),
        )
        spawn = multiprocessing.get_context("spawn")
        executor = stack.enter_context(ProcessPoolExecutor(1, spawn))
        figures, repeated = executor.submit(measured_figures, bench, options.only).result()
    if repeated:
        remarks.append(
            f"{report.distance(round_trip)}: {repeated} portions were measured again, because the "
            f"machine's host took more than {rounds.MAX_STOLEN_SHARE:.0%} of the CPU time"
        )
    return figures, remarks


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench")
    parser.add_argument(
        "--round-trip",
        type=lambda text: [float(each) for each in text.split(",")],
        default=[0.0, 1.0, 10.0],
        help="milliseconds of the network, such as 1,10; 0 is the loopback",
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=(), help="such as cycle,many"
    )
    parser.add_argument("--quick", action="store_true", help="run a short test of the program")
    parser.add_argument("--rounds", type=int, help="number of rounds of all figures")
    parser.add_argument("--seed", type=int, help="seed of the order of the contenders")
    parser.add_argument("--write", type=Path, help="write the table and the plots into this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
