"""A lock with a limited number of holders."""

from collections.abc import Callable
from typing import Unpack

from .. import validators
from ..backends import Server
from .base import BaseLock
from .options import LockOptions


class Semaphore(BaseLock):
    """A lock whose holders have a total weight of at most `limit`. Created by
    `LockManager.semaphore`.

    Each holder has its own lease. The limit of the most recent caller applies. A new limit does
    not remove current holders. It applies to all waiters.
    """

    kind = "semaphore"

    def __init__(
        self,
        server: Callable[[], Server],
        name: str,
        limit: int,
        *,
        weight: int = 1,
        **options: Unpack[LockOptions],
    ) -> None:
        super().__init__(server, name, **options)
        self.capacity = validators.count("limit", limit)
        self.weight = validators.count("weight", weight, most=limit)
