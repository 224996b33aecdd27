"""A site that is set up as one should be hears no complaint of Django's checks, nor of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ROOT

SETTINGS = """
from tests.settings import *

SECRET_KEY = "a long one, of a test, that is not so very secret after all: 4f9a1c77"
ALLOWED_HOSTS = ["shop.example"]
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
SECURE_HSTS_SECONDS = 31536000
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True

CACHES["locks"] = {**CACHES["default"], "LOCATION": redis_database(3)}
REDISLOCK_CACHE = "locks"
"""


@pytest.mark.parametrize(
    "command",
    ["check --deploy --fail-level WARNING", "makemigrations --check --dry-run"],
)
def test_a_deployment_is_clean(command: str, tmp_path: Path) -> None:
    tmp_path.joinpath("deployed.py").write_text(SETTINGS)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", *command.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "deployed"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
