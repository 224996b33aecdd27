"""A RabbitMQ server from Debian's package, separate from any other on the machine."""

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from kombu import Connection

from testproject.stage import free_port
from tests.programs import find
from tests.tools import wait_until

STARTS_WITHIN = 60.0

STOPS_WITHIN = 20.0


def _environment(folder: Path, port: int, names_port: int) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"tests-{uuid.uuid4().hex[:8]}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
    }


def _answers(url: str) -> bool:
    try:
        with Connection(url, connect_timeout=1) as connection:
            connection.connect()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOPS_WITHIN)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """The URL of a server that keeps its data in `folder`."""
    program = find("rabbitmq-server")
    port, names_port = free_port(), free_port()
    environment = _environment(folder, port, names_port)
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    names = _process(["epmd", "-port", str(names_port)], environment, folder / "epmd.log")
    with names, _process([program], environment, folder / "server.log"):
        wait_until(lambda: _answers(url), timeout=STARTS_WITHIN, interval=0.1)
        yield url
