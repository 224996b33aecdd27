"""A server that speaks the protocol of Redis, and replies to each script with the same bytes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread


class _Server(ThreadingTCPServer):
    def __init__(self, reply: bytes, other: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.reply, self.other = reply, other
        self.accepted: list[socket.socket] = []

    def process_request(self, request, client_address) -> None:
        self.accepted.append(request)
        super().process_request(request, client_address)


class _Client(StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(OSError, EOFError):  # the client is gone
            while command := _read_command(self.rfile):
                is_script = command[0].upper() in (b"EVAL", b"EVALSHA")
                self.wfile.write(self.server.reply if is_script else self.server.other)


@contextmanager
def odd_server(reply: bytes, other: bytes = b"+OK\r\n") -> Iterator[int]:
    """Run the server in threads, and yield its port. It replies `other` to what is no script."""
    with _Server(reply, other) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
            for client in server.accepted:
                with suppress(OSError):  # it is closed
                    client.shutdown(socket.SHUT_RDWR)


def _read_command(file) -> list[bytes]:
    return [file.read(_number(file) + 2)[:-2] for _ in range(_number(file))]


def _number(file) -> int:
    line = file.readline()
    if not line:
        raise EOFError
    return int(line[1:])
