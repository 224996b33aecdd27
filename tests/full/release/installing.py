"""A new project in a virtual environment that has the wheel and what it asks for, and no more."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

SETTINGS = """
INSTALLED_APPS += ["django_redislock"]
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": "redis://127.0.0.1:6379/0",
    },
}
"""

VERSION = "import django_redislock; print(django_redislock.__version__)"


def uninstallable(wheel: Path, version: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            yield from _of_use(place, wheel.resolve(), version)
        except subprocess.CalledProcessError as error:
            yield f"{' '.join(error.cmd)}\n{error.stdout}"


def _of_use(place: "Place", wheel: Path, version: str) -> Iterator[str]:
    place.run(sys.executable, "-m", "venv", "venv")
    place.python("-m", "pip", "--disable-pip-version-check", "--quiet", "install", str(wheel))
    place.python("-m", "pip", "--disable-pip-version-check", "check")
    found = place.python("-W", "error", "-c", VERSION).strip()
    if found != version:
        yield f"what is installed says version {found}, the tree {version}"
    place.python("-m", "django", "startproject", "site_", ".")
    with place.folder.joinpath("site_", "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    for command in (
        ("check", "--fail-level", "WARNING"),
        ("makemigrations", "--check", "--dry-run"),
        ("migrate", "--verbosity", "0"),
        ("locks", "--help"),
    ):
        place.python("-W", "error", "manage.py", *command)


class Place:
    """A folder without this checkout on its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def python(self, *arguments: str) -> str:
        return self.run(str(self.folder / "venv" / "bin" / "python"), *arguments)

    def run(self, *command: str) -> str:
        ours = {"PYTHONPATH", "DJANGO_SETTINGS_MODULE"}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name not in ours},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return done.stdout


def beside(wheel: Path, folder: Path) -> Path:
    """The Python of a new virtual environment that has the wheel, and of everything else what this
    one has, but for this checkout."""
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # What is below a folder that is named so is found, but its own .pth files are not read, by one
    # of which an editable installation leads to the checkout.
    packages.joinpath("what_else.pth").write_text(sysconfig.get_path("purelib"))
    return python
