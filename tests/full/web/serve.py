"""Serve the views with the server of ``runserver`` or with uvicorn, and print the port.

``python -m tests.full.web.serve wsgi`` or ``asgi``.
"""

import socket
import sys

import django
from django.core.asgi import get_asgi_application
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application


def serve_wsgi() -> None:
    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(get_wsgi_application())
    print(server.server_port, flush=True)
    server.serve_forever()


def serve_asgi() -> None:
    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(get_asgi_application(), lifespan="off", log_level="warning")
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    django.setup()
    serve_wsgi() if sys.argv[1] == "wsgi" else serve_asgi()
