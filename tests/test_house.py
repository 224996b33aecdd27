"""The rules of this suite hold: nothing is left in Redis, and under CI nothing is skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import PACKAGES
from .tools import ROOT, Child

LEAVES_A_KEY = """
def test_tidy(redis_server):
    redis_server.set("theirs:1:cached", 1)
    redis_server.zadd("theirs:redislock:{3}:index", {"": 1, "ran out": 2})
    redis_server.hset("theirs:redislock:{3}:lock:ran out", "latest", 2)
    redis_server.xadd("theirs:redislock:{3}:history:ended", {"name": "a"})

def test_untidy(redis_server):
    redis_server.zadd("theirs:redislock:{3}:index", {"": 1, "invoice": 9e12})
    redis_server.hset("theirs:redislock:{3}:lock:invoice", "latest", 9e12)
"""

SKIPS = """
import pytest

@pytest.mark.skip
def test_left_out(): ...

@pytest.mark.xfail
def test_known(): assert False
"""

SKIPS_ALL = "import pytest; pytest.skip('no server', allow_module_level=True)"

NEEDS_PROGRAMS = """
import pytest
from tests.programs import PACKAGES, find
from tests.servers import Node
from tests.servers.clock import Clock

@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    return Clock(tmp_path_factory.mktemp("clock") / "clock")

def test_with_a_clock(clock): ...

def test_with_a_clock_too(clock): ...

def test_with_tls():
    with Node("redis-7.0"): ...

@pytest.mark.parametrize("program", PACKAGES)
def test_with_a_program(program):
    find(program)
"""


def pytest_run(
    folder: Path, *modules: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The outcome of pytest on `modules`, with this suite's configuration and fixtures."""
    for number, code in enumerate(modules):
        folder.joinpath(f"test_{number}.py").write_text(code)
    command = ["-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    return subprocess.run(
        [sys.executable, *command, "-p", "no:cacheprovider", str(folder)],
        cwd=ROOT,
        env=os.environ | {"CI": ""} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_a_key_that_is_left_fails_the_test_by_name(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, LEAVES_A_KEY)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_untidy" in done.stdout
    assert "{3}:index -> invoice, theirs:redislock:{3}:lock:invoice" in done.stdout


@pytest.mark.slow
def test_a_laptop_may_skip(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, SKIPS, SKIPS_ALL)
    assert "2 skipped, 1 xfailed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_without_its_program_a_test_is_skipped(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, NEEDS_PROGRAMS, PATH=os.devnull)
    assert f"{len(PACKAGES) + 3} skipped" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_under_ci_a_missing_program_is_a_failure(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, NEEDS_PROGRAMS, CI="true", PATH=os.devnull)
    counts = f"{len(PACKAGES) + 1} failed, 2 errors"
    assert counts in done.stdout, done.stdout + done.stderr
    assert "redis-server is missing: apt-get install redis-server" in done.stdout


@pytest.mark.slow
def test_under_ci_a_skip_is_a_failure(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, SKIPS, CI="true")
    assert "1 xfailed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "under CI nothing may be" in done.stdout


@pytest.mark.slow
def test_under_ci_a_module_that_skips_itself_is_an_error(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, SKIPS_ALL, CI="true")
    assert "1 error" in done.stdout, done.stdout + done.stderr
    assert "under CI nothing may be" in done.stdout


def test_a_child_is_heard_and_told() -> None:
    with Child("say('my name is ' + sys.argv[1]); say(hear())", "Ada") as child:
        assert child.expect("my name is") == "Ada"
        child.tell("hello")
        child.expect("hello")
        assert child.wait() == 0


def test_a_child_that_says_something_else_fails_the_test() -> None:
    with Child("say('no')") as child, pytest.raises(AssertionError, match="'no', not 'yes'"):
        child.expect("yes")
