"""Find the optional programs of the tests. A test whose program is missing is skipped.

PATH alone decides whether a program is found, so that `.ci/run` can hide one. Debian keeps some
programs in folders that are not on PATH. Such a folder counts only if a command of the same
package is on PATH.
"""

import shutil
from pathlib import Path
from typing import NamedTuple


class Missing(RuntimeError):
    """An optional program is not installed. The message says how to install it."""


class Package(NamedTuple):
    """A Debian package, the folder where it keeps its programs, and its command on PATH."""

    name: str
    folder: str = ""
    command: str = ""


GETTEXT = ("xgettext", "msguniq", "msgmerge", "msgattrib", "msgfmt")
"""The programs that Django's `makemessages` and `compilemessages` call."""

POSTGRESQL = Package("postgresql", "postgresql/*/bin", "pg_ctlcluster")

PACKAGES = {
    "chromedriver": Package("chromium-driver"),
    "chromium": Package("chromium"),
    "initdb": POSTGRESQL,
    "libfaketime.so.1": Package("faketime", "*/faketime", "faketime"),
    "memcached": Package("memcached"),
    "npm": Package("npm"),
    "postgres": POSTGRESQL,
    # The script of this name on PATH starts only one server on a machine.
    "rabbitmq-server": Package("rabbitmq-server", "rabbitmq/bin", "epmd"),
    "redis-server": Package("redis-server"),
    "spin": Package("spin"),
    **dict.fromkeys(GETTEXT, Package("gettext")),
}


def find(name: str) -> str:
    """Return the path of an optional program or library.

    Raises:
        Missing: It is not installed.
    """
    package = PACKAGES[name]
    if package.folder and shutil.which(package.command):
        # The highest version comes first.
        found = sorted(Path("/usr/lib").glob(f"{package.folder}/{name}"), reverse=True)
        if found:
            return str(found[0])
    if path := shutil.which(name):
        return path
    raise Missing(f"{name} is missing: apt-get install {package.name}")
