"""A PostgreSQL server in a temporary folder, on a unix socket, with nothing kept."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections
from django.db.utils import OperationalError

from tests.programs import find
from tests.tools import wait_until

# The server goes when the test process closes the pipe, however that ends.
KEEPER = """
"$0" -D "$1/data" -k "$1" -c listen_addresses= -c fsync=off -c full_page_writes=off &
read -r _
kill -QUIT $!
wait $!
rm -rf "$1"
"""


def database(folder: str) -> dict[str, Any]:
    """The entry of DATABASES for the server in `folder`."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": folder,
    }


@contextlib.contextmanager
def running() -> Iterator[str]:
    """A server while the block runs; its folder, which is where its socket is."""
    folder = tempfile.mkdtemp(prefix="tests-postgres-")
    try:
        with _server(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def migrated(alias: str, entry: dict[str, Any]) -> Iterator[None]:
    """That alias, with all tables, while the block runs."""
    connections.settings[alias] = dict(entry)
    connections.configure_settings(connections.settings)
    wait_until(lambda: _is_up(alias), timeout=60)
    call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    yield
    connections[alias].close()
    del connections[alias], connections.settings[alias]


def _is_up(alias: str) -> bool:
    with contextlib.suppress(OperationalError):
        connections[alias].ensure_connection()
    return connections[alias].connection is not None


@contextlib.contextmanager
def _server(folder: str) -> Iterator[None]:
    who = _not_root(folder)
    command = [find("initdb"), "-D", f"{folder}/data", "-U", "postgres", "--no-sync"]
    subprocess.run(
        [*command, "-A", "trust", "-E", "UTF8", "--no-locale"],
        check=True,
        capture_output=True,
        cwd=folder,
        **who,
    )
    with Path(folder, "log").open("w") as log:
        keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, find("postgres"), folder],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
            **who,
        )
    try:
        yield
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(60)


def _not_root(folder: str) -> dict[str, Any]:
    """As whom to run it: PostgreSQL refuses to be root."""
    if os.getuid() != 0:
        return {}
    names = {each.pw_name for each in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
