"""A virtual environment with the wheel, in a folder without this checkout on its path."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")

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
    """Install the wheel and its requirements from an index, and start a project."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            place.run(sys.executable, "-m", "venv", "venv")
            place.python(*PIP, "install", str(wheel.resolve()))
            place.python(*PIP, "check")
            found = place.python("-W", "error", "-c", VERSION).strip()
            if found != version:
                yield f"the installed package has version {found}, the checkout {version}"
            place.start_project(SETTINGS)
            for command in (
                ("check", "--fail-level", "WARNING"),
                ("makemigrations", "--check", "--dry-run"),
                ("migrate", "--verbosity", "0"),
                ("locks", "--help"),
            ):
                place.manage(*command)
        except subprocess.CalledProcessError as error:
            yield f"{' '.join(error.cmd)}\n{error.stdout}"


class Place:
    """A folder with a virtual environment and a Django project, ``site_``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start_project(self, settings: str) -> None:
        self.python("-m", "django", "startproject", "site_", ".")
        with self.folder.joinpath("site_", "settings.py").open("a") as file:
            file.write(settings)

    def manage(self, *arguments: str) -> str:
        return self.python("-W", "error", "manage.py", *arguments)

    def python(self, *arguments: str) -> str:
        return self.run(str(self.folder / "venv" / "bin" / "python"), *arguments)

    def run(self, *command: str, stdin: str = "") -> str:
        ours = {"PYTHONPATH", "DJANGO_SETTINGS_MODULE", "REDIS_URL"}
        try:
            return subprocess.run(
                command,
                cwd=self.folder,
                env={name: value for name, value in os.environ.items() if name not in ours},
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            ).stdout
        except subprocess.CalledProcessError as error:
            error.add_note(error.stdout)
            raise


def beside(wheel: Path, folder: Path) -> Path:
    """Return the Python of a new virtual environment with the wheel.

    It has the other packages of the current environment too, except for this checkout.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *PIP, *install], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # The folder is added to the path, but its own .pth files are not read. The one of an editable
    # installation leads to the checkout.
    packages.joinpath("other_packages.pth").write_text(sysconfig.get_path("purelib"))
    return python
