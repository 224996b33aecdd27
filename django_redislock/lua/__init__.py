"""The scripts, one file each. A line ``--> _queue.lua`` stands for all of that file: what is met
most often comes before it, as to define what it does not need takes longer than to do it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

INCLUDE = re.compile(r"--> (\w+)\.lua")


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


def lines(name: str) -> Iterator[tuple[str, int, str]]:
    """The lines of a script, each with the file that it is in and its number there."""
    text = (files(__name__) / f"{name}.lua").read_text()
    for number, line in enumerate(text.splitlines(), 1):
        if included := INCLUDE.fullmatch(line):
            yield from lines(included[1])
        else:
            yield f"{name}.lua", number, line


def _load(name: str) -> Script:
    source = "\n".join(line for _, _, line in lines(name))
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


ACQUIRE = _load("acquire")
RELEASE = _load("release")
RENEW = _load("renew")
FENCE = _load("fence")
FORCE = _load("force")
INSPECT = _load("inspect")
NAMES = _load("names")
PAGE = _load("page")
ROWS = _load("rows")
QUEUE = _load("queue")
HISTORY = _load("history")
