"""The tutorial works from the start to the end."""

import os
import sys
from pathlib import Path

import pytest

from testproject.stage import free_port
from tests.tools import ROOT

from .reader import Reader

[PAGE] = ROOT.glob("docs/**/tutorial.md")

OF_THE_TESTS = (
    "CELERY_",
    "COV_",
    "COVERAGE_",
    "DJANGO_",
    "PYTEST",
    "PYTHON",
    "REDIS",
    "TESTPROJECT_",
)
"""Variables of the tests' environment that a reader does not have."""


@pytest.fixture
def text() -> str:
    """The text of the page, with free ports."""
    text = PAGE.read_text()
    for port in ("6379", "8000"):
        text = text.replace(port, str(free_port()))
    return text


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a reader, in which `python3` is the interpreter of the tests."""
    programs = tmp_path / "bin"
    programs.mkdir()
    programs.joinpath("python3").symlink_to(sys._base_executable)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TESTS)}
    return kept | {
        "HOME": str(tmp_path),
        "HISTFILE": os.devnull,
        "LC_ALL": "C.UTF-8",
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
    }


def without_installing(line: str) -> str | None:
    """Use the environment of the tests instead of a new one. See test_packaging for the wheel."""
    if line.startswith("pip install "):
        return None
    return f"ln -s {sys.prefix} .venv" if line == "python3 -m venv .venv" else line


@pytest.mark.celery
@pytest.mark.timeout(300)
def test_each_step_has_the_output_of_the_page(
    text: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with Reader(tmp_path, environment, without_installing) as reader:
        reader.read(text)
        assert len(reader.terminals) == 4
