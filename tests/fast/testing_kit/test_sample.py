"""A project that tests with the kit passes its tests where no Redis is installed or reached."""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools import ROOT

SAMPLE = Path(__file__).parent / "sample"

RUNS = {
    "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
    "manage.py test": ["-W", "error", "manage.py", "test"],
}


LATE = """
import sys, pytest, django_redislock
sys.exit(pytest.main(["-p", "no:cacheprovider", "-k", "leaves_nothing"]))
"""


def run(python: Path | str, arguments: Sequence[str], **environment: str) -> str:
    """What the sample's tests told, all of which passed. Of the environment it knows only where
    Python is, and so no server, and no program beside those of Python."""
    known = {"PATH": str(Path(python).parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=SAMPLE,
        env=known | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", RUNS)
def test_it_passes_its_own_tests(name: str) -> None:
    told = run(sys.executable, RUNS[name])
    assert " passed" in told or "\nOK" in told


@pytest.mark.slow
def test_it_passes_them_in_several_processes() -> None:
    assert "\nOK" in run(sys.executable, [*RUNS["manage.py test"], "--parallel", "2"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_passes_them_on_the_wheel_in_an_environment_of_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = installed(tmp_path / "venv", f"{wheel}[testing,celery]", "pytest", "pytest-django")
    for name, command in {**RUNS, "pytest that starts late": ["-c", LATE]}.items():
        told = run(python, command)
        assert " passed" in told or "\nOK" in told, name


def installed(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with these packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", *packages],
        check=True,
        env=os.environ | {"PIP_ROOT_USER_ACTION": "ignore"},
    )
    return python
