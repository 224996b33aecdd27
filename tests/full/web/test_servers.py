"""A guard on a real server: the second request is refused until the first one's stream ends."""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from django_redislock import locks
from tests.lock_tools import free
from tests.tools import Child

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
