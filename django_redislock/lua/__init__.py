"""The scripts, one file each; every one is run with `_lib.lua` put before it."""

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


def _load(name: str) -> Script:
    here = files(__name__)
    source = (here / "_lib.lua").read_text() + "\n" + (here / f"{name}.lua").read_text()
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


ACQUIRE = _load("acquire")
RELEASE = _load("release")
RENEW = _load("renew")
FENCE = _load("fence")
FORCE = _load("force")
INSPECT = _load("inspect")
NAMES = _load("names")
QUEUE = _load("queue")
HISTORY = _load("history")
