"""Start a process that dies when this one does, by whatever cause; find ports for it."""

import os
import random
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PORTS = range(10_000, 20_000)
"""Below a Cluster's bus ports, and those below what the kernel gives to outgoing connections."""

BUS = 10_000
"""How far a Cluster node's second port is from its first."""

# Not the generator that tests seed: processes that run in parallel would look for the same ports.
_random = random.SystemRandom()


def start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return _starter().submit(_start, command, log, os.environ | environment).result()


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests
        )


_starters: dict[int, ThreadPoolExecutor] = {}


def _starter() -> ThreadPoolExecutor:
    # The kernel kills a child when the thread that started it ends; this one lasts to the end.
    return _starters.setdefault(os.getpid(), ThreadPoolExecutor(1, "starts-servers"))


def free_port() -> int:
    return next(port for port in iter(_any_port, None) if _is_free(port) and _is_free(port + BUS))


def _any_port() -> int:
    return _random.choice(PORTS)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
