"""Start a process that dies when this one does, by whatever cause; find ports for it; wait for
what servers agree upon."""

import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import redis

from tests.tools import wait_until

T = TypeVar("T")

PORTS = range(10_000, 20_000)
"""Below a Cluster's bus ports, and those below what the kernel gives to outgoing connections."""

BUS = 10_000  # how far a Cluster node's second port is from its first

WORKERS = 8
"""How many processes can run tests at the same time without giving out the same ports."""


def start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        popen = partial(
            subprocess.Popen,
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=log.parent,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        return _starter(os.getpid()).submit(popen).result()


@cache
def _starter(process: int) -> ThreadPoolExecutor:
    # The kernel kills a child when the thread that started it ends; this one lasts to the end.
    return ThreadPoolExecutor(1, "starts-servers")


def free_port() -> int:
    """A port that no other server of this run gets, not even after this one has stopped."""
    return next(port for port in _ports(os.getpid()) if _is_free(port) and _is_free(port + BUS))


@cache
def _ports(process: int) -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = list(PORTS[worker % WORKERS :: WORKERS])
    # Not the generator that tests seed: two runs at the same time would begin with the same port.
    random.SystemRandom().shuffle(own)
    return cycle(own)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(predicate: Callable[[], T], *, timeout: float = 60) -> T:
    """`wait_until`; a server that doesn't answer, or closes connections, has not agreed yet."""

    def answer() -> T | None:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            return predicate()
        return None

    return wait_until(answer, timeout=timeout, interval=0.02)
