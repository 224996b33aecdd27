"""``python -m tests.full.topologies.clients [MAJOR...]`` runs the suite with releases of redis-py.

The newest release of each major version is installed into its own folder in the environment, with
and without hiredis. The last line of each run is printed.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.tools import ROOT

MAJORS = (5, 6, 7, 8)
FOLDERS = Path(sys.prefix, "clients")
SUITE = ["tests/full/topologies/test_conformance.py", "-k", "tcp-valkey or cluster-acl"]

WHICH = """
import redis
from redis.connection import Connection, DefaultParser
print(redis.__version__, f"RESP{Connection().protocol}", DefaultParser.__name__)
"""


def main(majors: Sequence[int]) -> int:
    passed = [_passes(major, hiredis) for major in majors for hiredis in (False, True)]
    return not all(passed)


def _passes(major: int, hiredis: bool) -> bool:
    path = [str(_installed(major, hiredis)), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    which = _run(["-c", WHICH], environment).stdout.strip()
    assert which.startswith(f"{major}."), which
    assert ("Hiredis" in which) == hiredis, which
    done = _run(["-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *SUITE], environment)
    print(f"{which}: {done.stdout.splitlines()[-1]}", flush=True)
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
