"""A project that tests with the kit passes its tests without a Redis server.

The tests of the page "Test your code" in the docs use the rest of the kit.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools import ROOT

SAMPLE = ROOT / "tests" / "fast" / "testing_kit" / "sample"

RUNS = {
    "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
    "manage.py test": ["-W", "error", "manage.py", "test"],
}


LATE = """
import sys, pytest, django_redislock
sys.exit(pytest.main(["-p", "no:cacheprovider", "-k", "leaves_nothing"]))
"""


def run(python: Path | str, arguments: Sequence[str], **environment: str) -> str:
    """Run the tests of the sample, which must pass, and return their output.

    The environment has only the path of Python, so no server or other program is available.
    """
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


@pytest.mark.parametrize("command", [*RUNS.values(), [*RUNS["manage.py test"], "--parallel", "2"]])
def test_the_sample_passes_its_tests(command: list[str]) -> None:
    output = run(sys.executable, command)
    assert " passed" in output or "\nOK" in output


@pytest.mark.timeout(600)
def test_the_sample_passes_its_tests_with_the_wheel_in_a_new_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = installed(tmp_path / "venv", f"{wheel}[testing]", "pytest", "pytest-django")
    for name, command in {**RUNS, "pytest that starts late": ["-c", LATE]}.items():
        output = run(python, command)
        assert " passed" in output or "\nOK" in output, name


def installed(folder: Path, *packages: str) -> Path:
    """Return the Python of a new environment with these packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", *packages],
        check=True,
        env=os.environ | {"PIP_ROOT_USER_ACTION": "ignore"},
    )
    return python
