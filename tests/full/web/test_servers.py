"""Two browsers and a real server: the second request is refused."""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from django_redislock import locks
from tests.lock_tools import free, start
from tests.tools import Child, wait_until

SERVE = {
    "wsgi": """
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
server.set_app(get_wsgi_application())
say(f"serves {server.server_port}")
server.serve_forever()
""",
    "asgi": """
import socket
import uvicorn
from django.core.asgi import get_asgi_application

listener = socket.create_server(("127.0.0.1", 0))
say(f"serves {listener.getsockname()[1]}")
config = uvicorn.Config(get_asgi_application(), lifespan="off", log_level="critical")
uvicorn.Server(config).run([listener])
""",
}


class Server(Child):
    """A server in a process of its own, killed at the end of ``with``."""

    def __init__(self, kind: str) -> None:
        super().__init__(SERVE[kind], DJANGO_SETTINGS_MODULE="tests.full.web.settings")
        self.port = int(self.expect("serves"))

    def request(self, method: str, path: str) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path)
        return connection, connection.getresponse()

    def status(self, method: str, path: str) -> int:
        connection, response = self.request(method, path)
        connection.close()
        return response.status


@pytest.fixture(params=SERVE)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "asgi":
        pytest.importorskip("uvicorn")
    with Server(request.param) as server:
        yield server


@pytest.mark.parametrize("view", ["pay", "apay"])
def test_one_of_two_posts_of_a_form_is_refused(server, hold, view):
    gate = hold("gate")
    path = f"/{view}/7/"
    both = [start(server.request, "POST", path) for _ in range(2)]
    wait_until(lambda: any(each.done() for each in both))
    refused = next(each for each in both if each.done())
    connection, response = refused.result()
    connection.close()
    assert response.status == 409
    assert response.headers["Retry-After"] in ("1", "2")
    gate.release()
    [accepted] = [each for each in both if each is not refused]
    connection, response = accepted.result()
    connection.close()
    assert response.status == 200
    assert server.status("POST", path) == 200
    assert locks.get("pay:7") is None


def test_a_killed_worker_frees_the_form_within_its_lease(hold):
    gate = hold("gate")
    with Server("wsgi") as other, Server("wsgi") as server:
        lost = start(other.request, "POST", "/pay/7/")
        wait_until(lambda: locks.get("pay:7"))
        assert server.status("POST", "/pay/7/") == 409
        other.kill()
        gate.release()
        assert lost.exception() is not None
        free(locks, "pay:7", timeout=5)
        assert server.status("POST", "/pay/7/") == 200


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_is_locked_until_it_ends_or_its_client_disconnects(server, leaves):
    connection, response = server.request("GET", "/report/")
    assert (response.status, response.read(6)) == (200, b"first\n")
    assert server.status("GET", "/report/") == 409
    if not leaves:
        response.read()
    response.close()
    connection.close()
    free(locks, "report")
    assert server.status("HEAD", "/report/") == 200
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
        server.status("GET", "/ready/")
        return locks.get("late-report") is None

    wait_until(is_free, timeout=20)  # its lease is longer
