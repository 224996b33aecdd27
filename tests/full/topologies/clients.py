"""``python -m tests.full.topologies.clients [MAJOR...]`` runs the suite with releases of redis-py.

The newest of each major that is named, or of all, is installed into a folder of its own in the
environment's, with and without hiredis, and stands before the environment's own. One row for each
is printed.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.tools import ROOT

MAJORS = (5, 6, 7, 8)
FOLDERS = Path(sys.prefix, "clients")
SUITE = [
    "tests/full/topologies/test_conformance.py",
    "-k",
    "tcp-valkey or cluster-acl",
]

WHICH = """
import redis
from redis.connection import Connection, DefaultParser
print(redis.__version__, f"RESP{Connection().protocol}", DefaultParser.__name__)
"""


def main(majors: Sequence[int]) -> int:
    print(f"{'redis-py':10}{'hiredis':9}{'default':9}{'passed':>7}{'failed':>7}{'seconds':>9}")
    passed = [_passes(major, hiredis) for major in majors for hiredis in (False, True)]
    return not all(passed)


def _passes(major: int, hiredis: bool) -> bool:
    environment = _environment(_installed(major, hiredis))
    version, protocol, parser = _run(["-c", WHICH], environment).stdout.split()
    assert version.startswith(f"{major}."), version
    assert ("Hiredis" in parser) == hiredis, parser
    began = time.monotonic()
    done = _run(["-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *SUITE], environment)
    seconds = time.monotonic() - began
    told: Counter[str] = Counter()
    for count, what in re.findall(r"(\d+) (passed|failed|error)", done.stdout):
        told[what] = int(count)
    failed = told["failed"] + told["error"]
    with_hiredis = "yes" if hiredis else "no"
    print(
        f"{version:10}{with_hiredis:9}{protocol:9}{told['passed']:7}{failed:7}{seconds:9.1f}",
        flush=True,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.returncode == 0


def _installed(major: int, hiredis: bool) -> Path:
    folder = FOLDERS / f"redis-{major}{'-hiredis' if hiredis else ''}"
    if not folder.exists():
        wanted = f"redis{'[hiredis]' if hiredis else ''}>={major},<{major + 1}"
        unfinished = folder.with_suffix(".new")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
        subprocess.run([*pip, "--upgrade", "--target", str(unfinished), wanted], check=True)
        unfinished.rename(folder)
    return folder


def _environment(first: Path) -> dict[str, str]:
    path = [str(first), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def _run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main([int(each) for each in sys.argv[1:]] or MAJORS))
