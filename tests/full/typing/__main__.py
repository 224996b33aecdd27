"""``python -m tests.full.typing``: exit with 0 if each type checker agrees, or else with 1."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.tools import ROOT
from tools.release.artefacts import Artefacts
from tools.release.installing import beside

SAMPLE = Path(__file__).with_name("shop")

MYPY = """\
[mypy]
strict = True
warn_unreachable = True
enable_error_code = ignore-without-code, unused-awaitable
plugins = mypy_django_plugin.main

[mypy.plugins.django-stubs]
django_settings_module = shop.settings
"""

PYRIGHT = {
    "include": ["shop"],
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,  # for mypy only
    "reportUnnecessaryTypeIgnoreComment": "error",
    "reportMissingTypeStubs": "none",
}


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = Artefacts.built(ROOT, folder / "dist", isolated=False).wheel
        python = beside(wheel, folder / "venv")
        shutil.copytree(SAMPLE, folder / "shop", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "mypy.ini").write_text(MYPY)
        (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
        agreed = [_agrees(command, folder) for command in _commands(python)]
    return not all(agreed)


def _commands(python: Path) -> Iterator[list[str]]:
    yield ["mypy", "--python-executable", str(python), "shop"]
    yield ["basedpyright", "--pythonpath", str(python)]


def _agrees(command: list[str], folder: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "typing")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
