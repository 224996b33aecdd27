"""Start a process that dies when this one does, by whatever cause; find ports for it; wait for
what servers agree upon."""

import os
import random
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import redis

from tests.tools import wait_until

T = TypeVar("T")

PORTS = range(10_000, 20_000)
"""Below a Cluster's bus ports, and those below what the kernel gives to outgoing connections."""

BUS = 10_000  # how far a Cluster node's second port is from its first

# Not the generator that tests seed: processes that run in parallel would look for the same ports.
_random = random.SystemRandom()


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
    while not (_is_free(port := _random.choice(PORTS)) and _is_free(port + BUS)):
        pass
    return port


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
