"""A run as a table, and on a page with plots (in colors for light and dark pages)."""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from tests.faults.table import markdown, write
from tests.servers import Node

from .contenders import OURS
from .figure import Figure, Line, Plot, Target, number

BEGIN = "<!-- bench: written by `make bench` -->"
END = "<!-- bench: end -->"

PACKAGES = (
    *("redis", "python-redis-lock", "pottery", "celery-once", "celery-singleton"),
    *("celery", "Django", "hiredis"),
)

Figures = Mapping[str, Figure]

Measured = Mapping[float, Figures]
"""The figures by the round trip of the network in milliseconds, which is 0 for the loopback."""


def table(measured: Measured) -> str:
    """Return a table of the lines with a target, in Markdown, and the other measurements. Each
    round trip has a column."""
    distances, rule = [*map(distance, measured)], ["--:"] * len(measured)
    rows = dict.fromkeys(_rows(measured))
    targets = [_row(measured, *row) for row in rows if _target(measured, *row)]
    others = [_row(measured, *row) for row in rows if not _target(measured, *row)]
    notes = [
        f"- {key}, {distance(round_trip)}: {note}"
        for round_trip, figures in measured.items()
        for key, figure in figures.items()
        for note in figure.notes
    ]
    parts = [
        summary(measured),
        markdown(
            ("Figure", "What", "Target", "Reason", *distances),
            ("---", "---", "--:", "---", *rule),
            *targets,
        ),
    ]
    if others:
        head = ("Figure", "What", *distances), ("---", "---", *rule)
        parts += ["Other measurements, which have no target:", markdown(*head, *others)]
    return "\n\n".join([*parts, "\n".join(notes)]).rstrip()


def distance(round_trip: float) -> str:
    return f"{round_trip:g} ms" if round_trip else "loopback"


def _rows(measured: Measured) -> Iterator[tuple[str, str]]:
    for figures in measured.values():
        for key, figure in figures.items():
            for line in figure.lines:
                yield key, line.what


def _row(measured: Measured, key: str, what: str) -> tuple[str, ...]:
    lines = [_line(figures, key, what) for figures in measured.values()]
    cells = [line.cell if line else "" for line in lines]
    target = _target(measured, key, what)
    if not target:
        return key, what, *cells
    limits = [f"{number(each.target.limit)}{each.unit}" for each in lines if each and each.target]
    if len(set(limits)) == 1:
        limits = limits[:1]
    return key, what, f"{target.sense} {', '.join(limits)}", target.why, *cells


def _target(measured: Measured, key: str, what: str) -> Target | None:
    """Return the target of a line, which has one at each distance or at none."""
    lines = (_line(figures, key, what) for figures in measured.values())
    return next((line.target for line in lines if line), None)


def _line(figures: Figures, key: str, what: str) -> Line | None:
    """Return a line of a figure. Some figures are measured on the loopback alone."""
    if key not in figures:
        return None
    return next((line for line in figures[key].lines if line.what == what), None)


def _lines(measured: Measured) -> list[Line]:
    return [
        line
        for figures in measured.values()
        for figure in figures.values()
        for line in figure.lines
        if line.target
    ]


def summary(measured: Measured) -> str:
    """Return how many targets are met."""
    lines = _lines(measured)
    return f"{sum(line.holds for line in lines)} of {len(lines)} targets are met."


def ends_well(measured: Measured) -> bool:
    return all(line.holds for line in _lines(measured))


def put_on(page: Path, images: Path, measured: Measured, where: str) -> None:
    """Write the table into the page, and the plots of the first round trip into files."""
    for old in images.glob("bench-*.svg"):
        old.unlink()
    first = next(iter(measured.values()))
    drawn = [
        f"![{plot.title}]({os.path.relpath(save(plot, images), page.parent)})"
        for figure in first.values()
        for plot in figure.plots
    ]
    write(page, "\n\n".join([where, table(measured), *drawn]), BEGIN, END)


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


WIDTH, ROW, BAR = 720, 26, 16
LABELS, VALUES = 340, 100  # widths left and right of the bars

STYLE = """
    .page { fill: #ffffff }
    text { fill: #1f2328 }
    .bar { fill: #9aa5b1 }
    .ours { fill: #2f80c8 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #131416 }
      text { fill: #e6e8eb }
      .bar { fill: #6b7683 }
      .ours { fill: #4f9be0 }
    }
  """


def save(plot: Plot, folder: Path) -> Path:
    svg = _draw(plot)
    indent(svg)
    path = folder / f"bench-{plot.name}.svg"
    ElementTree(svg).write(path, encoding="utf-8")
    path.write_text(f"{path.read_text()}\n")
    return path


def _draw(plot: Plot) -> Element:
    svg = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {ROW * (len(plot.bars) + 1) + 8}",
            "font-family": "sans-serif",
            "font-size": "13",
            "role": "img",
            "aria-label": plot.title,
        },
    )
    SubElement(svg, "style").text = STYLE
    SubElement(svg, "rect", {"class": "page", "width": "100%", "height": "100%"})
    unit = f" ({plot.unit})" if plot.unit else ""
    _write(svg, 0, 16, f"{plot.title}{unit}", **{"font-weight": "bold"})
    longest = max(plot.bars.values())
    alone = not any(label.startswith(OURS) for label in plot.bars)  # a plot of our locks only
    for place, (label, value) in enumerate(plot.bars.items(), 1):
        top = ROW * place + 4
        width = max(1.0, (WIDTH - LABELS - VALUES) * value / longest)
        kind = "ours" if alone or label.startswith(OURS) else "bar"
        _write(svg, 0, top + 13, label.replace("`", ""))
        box = {"x": f"{LABELS}", "y": f"{top}", "width": f"{width:.1f}", "height": f"{BAR}"}
        SubElement(svg, "rect", box | {"class": kind, "rx": "2"})
        _write(svg, LABELS + width + 8, top + 13, number(value))
    return svg


def _write(svg: Element, x: float, y: float, text: str, **style: str) -> None:
    SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y}"} | style).text = text
