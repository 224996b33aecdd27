"""What docs/getting-started/tutorial.md says is what happens to a reader who does it."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import django_redislock
from testproject.stage import free_port
from tests.tools import ROOT

from .page import steps
from .reader import Reader

PAGE = ROOT / "docs" / "getting-started" / "tutorial.md"

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
"""What the environment of the tests has that a reader's has not."""

PINNED = ("Django", "celery", "kombu", "redis")
"""What comes along in the tests' own versions, so that each end of what is supported is tried."""


@pytest.fixture
def text() -> str:
    """The page, with ports that nobody else has."""
    text = PAGE.read_text()
    for port in ("6379", "8000"):
        text = text.replace(port, str(free_port()))
    return text


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A reader's: `python3` is the interpreter of the tests, with nothing installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    programs.joinpath("python3").symlink_to(sys._base_executable)
    home = Path.home()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TESTS)}
    return kept | {
        "HOME": str(tmp_path),
        "HISTFILE": os.devnull,
        "LC_ALL": "C.UTF-8",
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        # Which index pip asks, and what it has already.
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(home / ".cache")),
        "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME", str(home / ".config")),
    }


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    path = tmp_path / "constraints.txt"
    versions = {name: version(name) for name in PINNED}
    versions["django-redislock"] = django_redislock.__version__
    path.write_text("".join(f"{name}=={number}\n" for name, number in versions.items()))
    return path


def with_the_tests_packages(line: str) -> str | None:
    """What one types who has all of it installed."""
    if line.startswith("pip install "):
        return None
    return f"ln -s {sys.prefix} .venv" if line == "python3 -m venv .venv" else line


def do_all(reader: Reader, text: str) -> None:
    for step in steps(text):
        reader.do(step)


@pytest.mark.celery
@pytest.mark.timeout(300)
def test_up_to_the_admin_what_the_page_says_is_what_happens(
    text: str, environment: dict[str, str], tmp_path: Path
) -> None:
    up_to_the_admin, rest = text.split("## See it in the admin")
    assert rest
    with Reader(tmp_path, environment, with_the_tests_packages) as reader:
        do_all(reader, up_to_the_admin)


@pytest.mark.slow
@pytest.mark.celery
@pytest.mark.timeout(600)
def test_all_of_it_is_so_for_one_who_has_nothing_but_the_page_and_the_wheel(
    text: str, environment: dict[str, str], wheel: Path, constraints: Path, tmp_path: Path
) -> None:
    places = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}"
    environment |= {"PIP_FIND_LINKS": places.strip(), "PIP_CONSTRAINT": str(constraints)}
    with Reader(tmp_path, environment) as reader:
        do_all(reader, text)
        assert [each.processes() for each in reader.terminals.values()] == [[]] * 4
    assert record_of(wheel) <= installed_record(tmp_path)


def record_of(wheel: Path) -> set[str]:
    """The digests of the package's files."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
        lines = archive.read(record).decode().splitlines()
    return {line for line in lines if line.startswith("django_redislock/")}


def installed_record(folder: Path) -> set[str]:
    (record,) = folder.glob("tutorial/.venv/lib/*/*/django_redislock-*.dist-info/RECORD")
    return set(record.read_text().splitlines())
