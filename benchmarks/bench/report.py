"""A run as a table, as JSON, and on a page."""

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.faults.table import write
from tests.servers import Node

from .figure import Figure
from .lines import Line
from .plots import save

BEGIN = "<!-- bench: written by `make bench` -->"
END = "<!-- bench: end -->"

HEAD = ("Figure", "What", "Goal", "Floor", "Result", "Spread", "Holds")

PACKAGES = (
    *("redis", "python-redis-lock", "pottery", "celery-once", "celery-singleton"),
    *("celery", "Django", "hiredis"),
)

Figures = Mapping[str, Figure]


def all_lines(figures: Figures) -> list[Line]:
    return [line for figure in figures.values() for line in figure.lines]


def table(figures: Figures) -> str:
    """In Markdown, and below it what else was measured."""
    rule = ("---", "---", "--:", "--:", "--:", "--:", "---")
    rows = [HEAD, rule, *(line.cells() for line in all_lines(figures))]
    notes = [f"- ({key}) {note}" for key, figure in figures.items() for note in figure.notes]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([*lines, "", *notes] if notes else lines)


def ends_well(figures: Figures) -> bool:
    return all(line.holds for line in all_lines(figures))


def put_on(page: Path, images: Path, figures: Figures, where: str) -> None:
    """The table, and the plots as files of their own."""
    for old in images.glob("bench-*.svg"):
        old.unlink()
    drawn = [
        f"![{plot.title}](../images/{save(plot, images).name})"
        for figure in figures.values()
        for plot in figure.plots
    ]
    write(page, "\n\n".join([where, table(figures), *drawn]), BEGIN, END)


def as_json(figures: Figures, where: str) -> str:
    told: dict[str, Any] = {
        "where": where,
        "holds": ends_well(figures),
        "lines": [_facts(line) for line in all_lines(figures)],
        "figures": {
            key: {
                "title": figure.title,
                "notes": figure.notes,
                "plots": [asdict(plot) for plot in figure.plots],
            }
            for key, figure in figures.items()
        },
    }
    return json.dumps(told, indent=2)


def _facts(line: Line) -> dict[str, Any]:
    return asdict(line) | {"holds": line.holds, "within_noise": line.within_noise}


def where_it_ran(node: Node) -> str:
    info = node.info("server")
    server = f"Valkey {info['valkey_version']}" if "valkey_version" in info else "Redis"
    machine = f"{platform.system()} {platform.machine()}, {_processor()}"
    python = f"Python {platform.python_version()}"
    return "; ".join([machine, ", ".join([server, python, *_versions()])])


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(names)} cores of {names[0]}" if names else "cores unknown"
