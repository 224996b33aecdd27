"""The parts of `make bench` on which every figure depends."""

import socket
import threading
from collections.abc import Iterator

import pytest

from benchmarks.bench.figure import Figure, Line, Target
from benchmarks.bench.proxy import Proxy
from benchmarks.bench.report import table

MANY_BYTES = b"".join(b"%d\n" % number for number in range(1_000_000))  # more than buffers take


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def _serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def test_the_proxy_delivers_all_data_in_order_and_then_the_end(echo):
    with (
        Proxy(echo, 0.002) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):

        def send() -> None:
            client.sendall(MANY_BYTES)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = bytearray()
        while data := client.recv(1 << 16):
            received += data
        sender.join()
    assert received == MANY_BYTES


def test_a_row_has_the_result_of_each_round_trip():
    near = Line.of("cycle time", [1.0, 1.1, 1.3], Target("at most", 1.2, "more work"))
    far = Line.of("cycle time", [1.5], Target("at most", 1.03, "more work"))
    alone = Line.of("memory", [700.0], unit=" B")
    measured = {
        0.0: {"cycle": Figure("", (near,)), "server": Figure("", (alone,))},
        10.0: {"cycle": Figure("", (far,), notes=("Slow.",))},
    }
    assert table(measured).splitlines() == [
        "1 of 2 targets are met.",
        "",
        "| Figure | What | Target | Reason | loopback | 10 ms |",
        "| --- | --- | --: | --- | --: | --: |",
        "| cycle | cycle time | at most 1.20, 1.03 | more work | 1.10 (1.05 to 1.20) | **1.50** |",
        "",
        "Other measurements, which have no target:",
        "",
        "| Figure | What | loopback | 10 ms |",
        "| --- | --- | --: | --: |",
        "| server | memory | 700 B |  |",
        "",
        "- cycle, 10 ms: Slow.",
    ]
