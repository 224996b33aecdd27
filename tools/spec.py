"""Check the models in `spec/` with SPIN: ``python -m tools.spec [--write PAGE] [NAME ...]``.

Each search of `spec/searches.toml` explores every state of a model. Then each fault of
`spec/faults.toml` is planted, and its search must find it. A search that does not come to its end
(depth, memory or time) is a failure. Exit status 0 if all is as it should be, else 1.

``--write`` writes the results and the table of steps into a page of the docs.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec"
SCRIPTS = ROOT / "django_redislock" / "lua"

MISSING = "SPIN is missing. On Debian: apt-get install spin gcc. Elsewhere: https://spinroot.com"

MAX_SECONDS = 600
MAX_DEPTH = 4_000_000
MAX_MEMORY_MB = 6000

COMPILE = ("gcc", "-w", "-O2", "-DSAFETY", "-DNOREDUCE", "-DNOFAIR", f"-DMEMLIM={MAX_MEMORY_MB}")

UNFINISHED = re.compile(
    r"Search not completed|max search depth too small|out of memory|memory limit|truncated"
)
STEP = re.compile(r"/\* @ (\S+): (.*?) \*/")
PART = re.compile(r"^(?:inline|proctype) (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Search:
    """All states of a model with some options."""

    name: str
    model: str
    options: str
    covers: str
    properties: list[str]


@dataclass(frozen=True)
class Fault:
    """A change of one place in a model that breaks it."""

    name: str
    breaks: str
    file: str
    search: str
    property: str
    good: str
    bad: str


class Result(NamedTuple):
    """The end of a search."""

    states: int
    seconds: float
    violated: str
    """The property that does not hold, or ""."""

    problem: str
    """Why the search proves nothing, or ""."""


class Step(NamedTuple):
    """A step of a model, and the place in a script that it describes."""

    part: str
    script: str
    """Relative to the scripts."""

    text: str


def load(kind: type[Any], name: str) -> dict[str, Any]:
    entries = tomllib.loads((SPEC / name).read_text())
    return {key: kind(name=key, **facts) for key, facts in entries.items()}


SEARCHES: dict[str, Search] = load(Search, "searches.toml")
FAULTS: dict[str, Fault] = load(Fault, "faults.toml")
OPTIONS: dict[str, dict[str, int]] = tomllib.loads((SPEC / "options.toml").read_text())


def definitions(model: str, options: str) -> list[str]:
    """Return the arguments of SPIN for a model with options such as ``"N=3 CALM=1"``."""
    own = dict(each.split("=") for each in options.split())
    if unknown := own.keys() - OPTIONS[model].keys():
        raise ValueError(f"{model} has no option {', '.join(sorted(unknown))}")
    return [f"-D{name}={value}" for name, value in (OPTIONS[model] | own).items()]


def steps() -> Iterator[Step]:
    """Yield the steps of the models that name a place."""
    for path in sorted(SPEC.glob("*.pml")):
        part = ""
        for line in path.read_text().splitlines():
            if named := PART.match(line):
                part = named[1]
            for script, text in STEP.findall(line):
                yield Step(part, script, text)


def copy_models(folder: Path, fault: Fault | None = None) -> None:
    """Copy the models, with a fault if one is given."""
    for path in SPEC.glob("*.pml"):
        text = path.read_text()
        if fault and fault.file == path.name:
            if text.count(fault.good) != 1:
                raise ValueError(f"fault {fault.name!r}: {fault.file} must have its text once")
            text = text.replace(fault.good, fault.bad)
        (folder / path.name).write_text(text)


def run(search: Search, fault: Fault | None = None) -> Result:
    """Run a search, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_models(folder, fault)
        begun = time.monotonic()
        options = definitions(search.model, search.options)
        made = call(folder, "spin", *options, "-a", search.model)
        if made.returncode == 0:
            made = call(folder, *COMPILE, "-o", "pan", "pan.c")
        if made.returncode:
            return Result(0, 0, "", f"does not compile: {made.stdout[-300:]}")
        try:
            done = call(folder, "nice", "./pan", f"-m{MAX_DEPTH}")
        except subprocess.TimeoutExpired:
            return Result(0, MAX_SECONDS, "", f"took more than {MAX_SECONDS} s")
        return outcome(folder, search, done.stdout, time.monotonic() - begun)


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )


def outcome(folder: Path, search: Search, output: str, seconds: float) -> Result:
    stored = re.search(r"(\d\S*) states, stored", output)
    errors = re.search(r"errors: (\d+)", output)
    if not stored or not errors:
        return Result(0, seconds, "", f"no result: {output[-300:]}")
    states = int(float(stored[1]))
    if errors[1] != "0":
        return Result(states, seconds, violated_property(folder, search), "")
    problem = UNFINISHED.search(output)
    return Result(states, seconds, "", problem[0] if problem else "")


def violated_property(folder: Path, search: Search) -> str:
    """Return the property in the line of the assertion that failed."""
    trail = f"{search.model}.trail"
    options = definitions(search.model, search.options)
    replay = call(folder, "spin", *options, "-k", trail, search.model)
    failed = re.search(r"(\w+\.pml):(\d+), Error: assertion violated", replay.stdout)
    if not failed:
        return "an assertion that the replay does not show"
    line = (folder / failed[1]).read_text().splitlines()[int(failed[2]) - 1]
    named = re.search(r"PROPERTY (\w+)", line)
    return named[1] if named else f"line {failed[2]} of {failed[1]}"


def run_all(names: list[str]) -> tuple[list[tuple[Search, Result]], list[tuple[Fault, Result]]]:
    searches = [each for each in SEARCHES.values() if not names or each.name in names]
    faults = [each for each in FAULTS.values() if not names or each.name in names]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda fault: run(SEARCHES[fault.search], fault), faults)
        good = pool.map(run, searches)
        return list(zip(searches, good, strict=True)), list(zip(faults, found, strict=True))


def verdict(result: Result) -> str:
    if result.problem:
        return f"UNFINISHED: {result.problem}"
    return f"VIOLATED: {result.violated}" if result.violated else "holds"


def fault_verdict(fault: Fault, result: Result) -> str:
    if result.problem or not result.violated:
        return f"NOT FOUND {result.problem}"
    return f"found: {result.violated}"


def search_table(results: list[tuple[Search, Result]]) -> list[str]:
    rows = [
        "| Search | Covers | Properties | States | Seconds | Result |",
        "|---|---|---|---|---|---|",
    ]
    for each, result in results:
        cells = (
            f"`{each.name}`",
            each.covers,
            ", ".join(each.properties),
            f"{result.states:,}",
            f"{result.seconds:.0f}",
            verdict(result),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def fault_table(results: list[tuple[Fault, Result]]) -> list[str]:
    rows = ["| Planted fault | Search | Seconds | Result |", "|---|---|---|---|"]
    for each, result in results:
        cells = (
            each.breaks,
            f"`{each.search}`",
            f"{result.seconds:.0f}",
            fault_verdict(each, result),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def step_table() -> list[str]:
    rows = ["| Step of the model | File | Place |", "|---|---|---|"]
    for part, script, text in steps():
        rows.append(f"| `{part}` | {script.removeprefix('../')} | `{text}` |")
    return rows


def write(page: Path, blocks: dict[str, list[str]]) -> None:
    """Replace the blocks of a page between their markers."""
    text = page.read_text()
    for name, rows in blocks.items():
        begin, end = f"<!-- {name}: written by make spec -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = "\n".join([before + begin, "", *rows, "", end]) + after
    page.write_text(text)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check the models in spec/ with SPIN.")
    parser.add_argument("names", nargs="*", help="searches and faults; all by default")
    parser.add_argument("--write", type=Path, help="a page of the docs")
    options = parser.parse_args(argv)
    if not shutil.which("spin") or not shutil.which("gcc"):
        print(MISSING, file=sys.stderr)
        return 1
    begun = time.monotonic()
    searches, faults = run_all(options.names)
    print(*search_table(searches), "", *fault_table(faults), "", sep="\n")
    print(f"{len(searches)} searches and {len(faults)} faults: {time.monotonic() - begun:.0f} s")
    if options.write:
        blocks = {"searches": search_table(searches), "planted": fault_table(faults)}
        write(options.write, {**blocks, "steps": step_table()})
    fine = all(verdict(result) == "holds" for _, result in searches)
    found = all(each.property == result.violated for each, result in faults)
    return 0 if fine and found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
