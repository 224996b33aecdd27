"""The Lua scripts, one file each, with its contract at the top.

A line ``--> _queue.lua`` includes a file. To define Lua functions takes time in each call, so a
script that has a fast path includes what only the slow path needs below it.
"""

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
    """Yield the lines of a script with its includes, each with its file and line number."""
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
HEARTBEAT = _load("heartbeat")
NAMES = _load("names")
ROWS = _load("rows")
QUEUE = _load("queue")
HISTORY = _load("history")
STORE = _load("store")
OUTBOX = _load("outbox")
SENT = _load("sent")
CANCEL = _load("cancel")
LAST_RUNS = _load("last_runs")
