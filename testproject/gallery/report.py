"""Format the results: for the terminal, as JSON, and for a page of the docs."""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .exhibit import Result, Side

BEGIN = "<!-- gallery: written by `manage.py gallery --write` -->"
END = "<!-- gallery: end -->"

HEAD = ("What goes wrong", "As taught", "This package", "Time")


def text_of(found: Result) -> str:
    """Return the result as text."""
    exhibit = found.exhibit
    lines = [
        f"{found.number:>2}. {exhibit.title}  [{exhibit.name}]",
        exhibit.algorithm,
        f"What goes wrong: {exhibit.failure}.",
        f"  as taught {_times(found, found.taught)}, ours {_times(found, found.ours)}"
        f"  ({found.seconds:.1f} s)",
        *(f"  {line}" for line in _figures(found)),
    ]
    return "\n    ".join(lines)


def json_of(everything: Sequence[Result]) -> str:
    exhibits = [
        {
            "number": found.number,
            "name": found.exhibit.name,
            "title": found.exhibit.title,
            "failure": found.exhibit.failure,
            "trials": found.trials,
            "taught": _side(found.taught),
            "ours": _side(found.ours),
            "seconds": round(found.seconds, 3),
            "as_expected": found.is_as_expected,
        }
        for found in everything
    ]
    return json.dumps({"where": where(), "exhibits": exhibits}, indent=2)


def _side(side: Side) -> dict[str, Any]:
    return {"failed": side.failed, "figures": dict(side.figures)}


def table_of(everything: Sequence[Result]) -> str:
    """Return a Markdown table, and a list of the other measurements."""
    rows = [HEAD, ("---", "--:", "--:", "--:"), *map(_row, everything)]
    notes = [f"- ({found.number}) {line}" for found in everything for line in _figures(found)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    seconds = sum(found.seconds for found in everything)
    return "\n".join([*lines, "", *notes, "", f"{seconds:.0f} seconds on {where()}."])


def _row(found: Result) -> tuple[str, ...]:
    return (
        f"({found.number}) {found.exhibit.title}: {found.exhibit.failure}",
        _times(found, found.taught),
        _times(found, found.ours),
        f"{found.seconds:.1f} s",
    )


def _times(found: Result, side: Side) -> str:
    return f"{side.failed} of {found.trials}"


def _figures(found: Result) -> Iterator[str]:
    for label, taught in found.taught.figures.items():
        yield f"{label}: as taught {_number(taught)}, ours {_number(found.ours.figures[label])}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def where() -> str:
    libraries = [f"{name} {version(name)}" for name in ("Django", "redis", "celery")]
    python = f"Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {', '.join([python, *libraries])}"


def write(page: Path, everything: Sequence[Result]) -> None:
    """Write the table between the markers of the page. Raises `ValueError` without markers."""
    before, found, rest = page.read_text().partition(BEGIN)
    _, also_found, after = rest.partition(END)
    if not (found and also_found):
        raise ValueError(f"{page} lacks the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{table_of(everything)}\n\n{END}{after}")
