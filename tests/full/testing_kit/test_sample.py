"""A project that tests with the kit passes its tests without a Redis server.

The tests of the page "Test your code" in the docs use the rest of the kit.
"""

import subprocess
import sys

import pytest

from tests.tools import ROOT

SAMPLE = ROOT / "tests" / "fast" / "testing_kit" / "sample"


@pytest.mark.parametrize("command", ["pytest -p no:cacheprovider", "django test --parallel 2"])
def test_the_sample_passes_its_tests(command: str) -> None:
    """The environment has no path, so no server or other program is available."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=SAMPLE,
        env={"DJANGO_SETTINGS_MODULE": "depot.settings", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout or "\nOK" in done.stderr
