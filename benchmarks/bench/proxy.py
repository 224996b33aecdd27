"""A TCP proxy that stands for a network: it delays all data by a fixed time in each direction.

It runs in a process of its own, as ``python -m benchmarks.bench.proxy HOST PORT SECONDS``, so that
it does not compete for the interpreter of a contender. It prints its port, and ends when its
standard input is closed, which also happens when its parent dies.

The data of all connections waits in one queue. Every entry has the same delay, so the queue is in
order of time without sorting, and the data of a connection stays in order. An event loop of
asyncio would be simpler, but sleeps for whole milliseconds: a round trip of 1 ms would take 2.4.

A new connection is open at once. All contenders keep their connections, so this does not matter.
"""

import select
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from tests.tools import ROOT

MAX_BYTES = 1 << 18  # that are read at a time

MEASURE_SECONDS = 0.5
MEASUREMENTS = 3
MEASURE_CONNECTIONS = 500

PING = b"PING\r\n"


class Proxy:
    """Context manager with a proxy process in front of the server at `url`.

    Args:
        url: The address of the server.
        round_trip: Seconds from a request to its reply, without the time of the server.
    """

    def __init__(self, url: str, round_trip: float) -> None:
        self._server = urlsplit(url)
        self._round_trip = round_trip

    def __enter__(self) -> Self:
        host, port = self._server.hostname, self._server.port
        arguments = (str(host), str(port), str(self._round_trip / 2))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bench.proxy", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = self._server._replace(netloc=f"127.0.0.1:{self.port}").geturl()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # closes its standard input

    def measured_round_trip(self) -> float:
        """Return the median seconds of a ``PING``."""
        seconds = []
        with _connected(self.port) as connection:
            for _ in range(50):
                begun = time.perf_counter()
                connection.sendall(PING)
                connection.recv(MAX_BYTES)
                seconds.append(time.perf_counter() - begun)
        return sorted(seconds)[len(seconds) // 2]

    def measured_limit(self) -> float:
        """Return how many round trips per second the proxy carries for many connections.

        The caller, the server and the proxy share the machine, as they do with a contender. The
        best of some measurements counts, because other load only disturbs.
        """
        return max(self._round_trips_per_second() for _ in range(MEASUREMENTS))

    def _round_trips_per_second(self) -> float:
        connections = {}
        polling = select.epoll()
        for _ in range(MEASURE_CONNECTIONS):
            connection = _connected(self.port)
            connections[connection.fileno()] = connection
            polling.register(connection, select.EPOLLIN)
            connection.sendall(PING)
        count = 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + MEASURE_SECONDS:
            for number, _ in polling.poll():
                connections[number].recv(MAX_BYTES)
                connections[number].sendall(PING)
                count += 1
        seconds = time.perf_counter() - begun
        for connection in connections.values():
            connection.close()
        polling.close()
        return count / seconds


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# The process of the proxy


class _Relay:
    """The connections, and the data that is on its way."""

    def __init__(self, server: tuple[str, int], delay: float) -> None:
        self._server = server
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._polling = select.epoll()
        self._polling.register(self._listener, select.EPOLLIN)
        self._polling.register(sys.stdin, select.EPOLLIN)
        self._peers: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._on_the_way: deque[tuple[float, socket.socket, bytes]] = deque()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Pass data on until the standard input is closed."""
        while True:
            for number in self._wait():
                if number == sys.stdin.fileno():
                    return
                if number == self._listener.fileno():
                    self._accept()
                elif number in self._peers:
                    self._read(*self._peers[number])
            self._deliver()

    def _wait(self) -> list[int]:
        """Return the sockets with data, or nothing if data on the way is due before."""
        timeout = None
        if self._on_the_way:
            timeout = max(0.0, self._on_the_way[0][0] - time.monotonic())
        # An epoll object rounds the time up to milliseconds, but select() can wait for it.
        ready, _, _ = select.select([self._polling], [], [], timeout)
        return [number for number, _ in self._polling.poll(0)] if ready else []

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        for source, target in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[source.fileno()] = source, target
            self._polling.register(source, select.EPOLLIN)

    def _read(self, source: socket.socket, target: socket.socket) -> None:
        data = b""  # the end of a connection travels like its data
        with suppress(ConnectionError):
            data = source.recv(MAX_BYTES)
        if not data:
            self._polling.unregister(source)
            del self._peers[source.fileno()]
        self._on_the_way.append((time.monotonic() + self._delay, target, data))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._on_the_way and self._on_the_way[0][0] <= now:
            due, target, data = self._on_the_way.popleft()
            rest = self._send(target, data)
            if rest:
                # The target reads too slowly. Read on meanwhile, because it may wait for that.
                self._on_the_way.appendleft((due, target, rest))
                return

    def _send(self, target: socket.socket, data: bytes) -> bytes:
        """Send data, or the end of the connection, and return what could not be sent yet."""
        try:
            if data:
                return data[target.send(data, socket.MSG_DONTWAIT) :]
            target.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return data
        except OSError:
            pass  # the target has ended before
        return b""


def main() -> None:
    host, port, delay = sys.argv[1:]
    relay = _Relay((host, int(port)), float(delay))
    print(relay.port, flush=True)
    relay.run()


if __name__ == "__main__":
    main()
