"""A run as a table, as JSON, and on a page."""

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.faults.table import markdown, write
from tests.servers import Node

from .figure import Figure
from .plots import save

BEGIN = "<!-- bench: written by `make bench` -->"
END = "<!-- bench: end -->"

HEAD = ("Figure", "What", "Goal", "Floor", "Result", "Spread", "Holds")
RULE = ("---", "---", "--:", "--:", "--:", "--:", "---")

PACKAGES = (
    *("redis", "python-redis-lock", "pottery", "celery-once", "celery-singleton"),
    *("celery", "Django", "hiredis"),
)

Figures = Mapping[str, Figure]


def table(figures: Figures) -> str:
    """In Markdown, and below it what else was measured."""
    rows = [(f"({key})", *line.cells()) for key in figures for line in figures[key].lines]
    notes = [f"- ({key}) {note}" for key, figure in figures.items() for note in figure.notes]
    return "\n".join([markdown(HEAD, RULE, *rows), *([""] if notes else []), *notes])


def ends_well(figures: Figures) -> bool:
    return all(line.holds for figure in figures.values() for line in figure.lines)


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
    measured = {key: asdict(figure) for key, figure in figures.items()}
    told = {"where": where, "holds": ends_well(figures), "figures": measured}
    return json.dumps(told, indent=2)


def where_it_ran(node: Node) -> str:
    info = node.info("server")
    server = f"Valkey {info['valkey_version']}" if "valkey_version" in info else "Redis"
    versions = dict.fromkeys(PACKAGES, "")
    for name in versions:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    packages = [f"{name} {found}" if found else f"no {name}" for name, found in versions.items()]
    python = f"Python {platform.python_version()}"
    machine = f"{platform.system()} {platform.machine()}, {_processor()}"
    return f"{machine}; {', '.join([server, python, *packages])}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else "cores unknown"
