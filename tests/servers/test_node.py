import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..tools import ROOT, wait_until
from . import MAKES, Certificates, Node
from .needs import needs

VERSIONS = {"valkey-9.1": "9.1.", "redis-7.0": "7.0.", "redis-6.2": "6.2."}
ONCE = Retry(NoBackoff(), 0)


@pytest.fixture(params=MAKES)
def make(request):
    needs(request.param)
    return request.param


def test_a_node_of_each_make_answers_as_that_make(make):
    with Node(make) as node:
        info = node.info("server")
        assert info.get("valkey_version", info["redis_version"]).startswith(VERSIONS[make])
        assert int(info["process_id"]) == node.pid
        assert node.client().set("key", "value")


def test_a_killed_node_is_gone_and_its_restart_has_its_port(make):
    with Node(make) as node:
        port, client = node.port, node.client()
        client.set("key", "value")
        node.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        node.start()
        assert node.port == port
        assert client.get("key") is None, "nothing was to be persisted"


def test_what_is_persisted_comes_back_unless_it_is_to_be_empty(make):
    with Node(make, appendonly="yes", appendfsync="always") as node:
        client = node.client()
        client.set("key", "value")
        node.restart()
        assert client.get("key") == "value"
        node.restart(empty=True)
        assert client.get("key") is None


def test_what_is_configured_outlives_a_restart(make):
    with Node(make, maxmemory="100mb") as node:
        node.configure(maxmemory_policy="allkeys-lru")
        node.restart()
        assert node.info("memory")["maxmemory"] == str(100 * 1024 * 1024)
        assert node.info("memory")["maxmemory_policy"] == "allkeys-lru"


def test_a_paused_node_answers_nobody_until_it_is_resumed():
    with Node() as node:
        client = node.client(socket_timeout=0.1)
        client.ping()
        node.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        node.resume()
        assert wait_until(node.client().ping)


def test_a_node_on_a_unix_socket_has_no_port(make):
    with Node(make, unix=True) as node:
        assert node.url.startswith("unix://")
        assert node.port == 0
        assert node.client().ping()
        node.restart()
        assert node.client().ping()


@pytest.fixture(scope="module")
def certificates():
    return Certificates()


def test_a_node_with_tls_speaks_nothing_else(certificates):
    needs("redis-7.0")
    with Node(tls=certificates) as node:
        assert node.url.startswith("rediss://")
        assert node.client().ping()
        with (
            redis.Redis(port=node.port, retry=ONCE) as plain,
            pytest.raises(redis.ConnectionError),
        ):
            plain.ping()
        with (
            redis.Redis.from_url(node.url, retry=ONCE) as distrustful,
            pytest.raises(redis.ConnectionError, match="certificate verify failed"),
        ):
            distrustful.ping()


def test_a_node_may_ask_for_the_clients_certificate(certificates):
    needs("redis-7.0")
    with Node(tls=certificates, tls_auth_clients="yes") as node:
        assert node.client().ping()
        with (
            redis.Redis.from_url(node.url, retry=ONCE, **certificates.client) as nameless,
            pytest.raises(redis.ConnectionError),
        ):
            nameless.ping()


def test_a_node_listens_on_this_machine_alone(make):
    with Node(make) as node:
        assert node.client().config_get("bind") == {"bind": "127.0.0.1"}


def test_a_node_that_does_not_come_up_says_why():
    with pytest.raises(RuntimeError, match="no-such-option"), Node(no_such_option="yes"):
        pass


def test_a_taken_port_is_left_for_another_one():
    with Node() as first:
        second = Node()
        second.port = first.port
        with second:
            assert second.port != first.port
            assert int(second.info("server")["process_id"]) == second.pid


def test_the_folder_goes_with_the_node():
    with Node() as node:
        assert node.folder.exists()
    assert not node.folder.exists()


ORPHAN = """
import sys
from tests.servers import Node
node = Node().start()
node.pause()
print(node.pid, node.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_no_server_outlives_a_killed_starter():
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        pid, folder = starter.stdout.readline().split()
        os.kill(starter.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(int(pid)))
    subprocess.run(["rm", "-r", folder], check=True)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_environment_reaches_the_process():
    # A server that may set its title overwrites what it was given.
    with Node(environment={"FAKETIME": "+1h"}, set_proc_title="no") as node:
        assert "FAKETIME=+1h" in Path(f"/proc/{node.pid}/environ").read_text().split("\0")


def test_a_server_that_ends_by_itself_is_not_running():
    with Node() as node:
        node.client().shutdown(nosave=True)
        wait_until(lambda: not node.is_running)
        started = time.monotonic()
        node.stop()
        assert time.monotonic() - started < 5
