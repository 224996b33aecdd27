"""The fixtures of the pytest plugin, in another project. `tests/full/testing_kit` has more."""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["django_redislock"]
CACHES = {"default": {
    "BACKEND": "django.core.cache.backends.redis.RedisCache",
    "LOCATION": "redis://redis.invalid:6379/0",
}}
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

BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Without other plugins, pytest starts faster."""

OWN = ["-p", "django_redislock.testing.plugin"]


def run(
    folder: Path, code: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project with this one test file."""
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


def test_a_test_that_leaves_a_lock_held_fails_with_its_name(tmp_path: Path) -> None:
    done = run(tmp_path, HOLDS, *OWN, **BARE)
    assert "3 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_untidy" in done.stdout
    assert f"'invoice:42' on 'default' by {os.uname().nodename}:" in done.stdout
