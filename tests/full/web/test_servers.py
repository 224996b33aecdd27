"""Two browsers and a real server: the second request is refused."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from importlib.util import find_spec

import pytest

from django_redislock import locks
from tests.lock_tools import free, start
from tests.tools import ROOT, wait_until


class Server:
    """A server in a process of its own, killed at the end of ``with``."""

    def __init__(self, kind: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.full.web.serve", kind],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.full.web.settings"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "Server":
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        assert self.ask("GET", "/ready/")[0] == 200
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ask(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the body of a response."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()


@pytest.fixture(params=["wsgi", "asgi"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "asgi":
        pytest.importorskip("uvicorn")
    with Server(request.param) as server:
        yield server


@pytest.mark.parametrize("view", ["pay", "apay", "rest"])
def test_one_of_two_posts_of_a_form_is_refused(server, hold, view):
    if view == "rest" and not find_spec("rest_framework"):
        pytest.skip("Django REST framework is not installed")
    gate = hold("gate")
    path = f"/{view}/7/"
    both = [start(server.ask, "POST", path) for _ in range(2)]
    wait_until(lambda: any(each.done() for each in both))
    refused = next(each for each in both if each.done())
    status, headers, _ = refused.result()
    assert status == 409
    assert headers["Retry-After"] in ("1", "2")
    assert server.ask("POST", path)[0] == 409
    gate.release()
    [accepted] = [each for each in both if each is not refused]
    assert accepted.result()[0] == 200
    assert server.ask("POST", path)[0] == 200
    assert locks.get("pay:7") is None


def test_a_killed_worker_frees_the_form_within_its_lease(hold):
    gate = hold("gate")
    with Server("wsgi") as other, Server("wsgi") as server:
        lost = start(other.ask, "POST", "/pay/7/")
        wait_until(lambda: locks.get("pay:7"))
        assert server.ask("POST", "/pay/7/")[0] == 409
        os.kill(other.process.pid, signal.SIGKILL)
        gate.release()
        assert lost.exception() is not None
        free(locks, "pay:7", timeout=5)
        assert server.ask("POST", "/pay/7/")[0] == 200


def test_the_lock_is_held_until_the_stream_ends(server):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/report/")
    response = connection.getresponse()
    assert response.status == 200
    assert response.read(6) == b"first\n"
    assert server.ask("GET", "/report/")[0] == 409
    response.read()
    connection.close()
    free(locks, "report")


def test_a_client_that_disconnects_frees_the_stream(server):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/report/")
    assert connection.getresponse().read(6) == b"first\n"
    connection.close()
    free(locks, "report")


def test_a_client_that_disconnects_before_the_stream_begins_frees_it(server, hold):
    gate = hold("gate")
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/late-report/")
    wait_until(lambda: locks.get("late-report"))
    connection.close()
    gate.release()

    def is_free():
        # Python may free the response in a garbage collection, which other requests bring about.
        server.ask("GET", "/ready/")
        return locks.get("late-report") is None

    wait_until(is_free, timeout=20)  # its lease is longer


def test_a_head_request_of_a_stream_frees_it(server):
    assert server.ask("HEAD", "/report/")[0] == 200
    free(locks, "report")
