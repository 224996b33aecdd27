"""So many holders at a time."""

from collections.abc import Callable
from typing import Unpack

from .. import values
from ..connection import Server
from .base import BaseLock
from .core import Options


class Semaphore(BaseLock):
    """Of all who ask for its name, as many hold it as weigh `limit` together.

    Each permit has its own lease. The limit is that of who asked last: where it is raised or
    lowered, those who are in stay in, and those who wait go by the new one.
    """

    kind = "semaphore"

    def __init__(
        self,
        server: Callable[[], Server],
        name: str,
        limit: int,
        *,
        weight: int = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(server, name, **options)
        self.capacity = values.count("limit", limit)
        self.weight = values.count("weight", weight, most=limit)
