"""A process that has locks of one package, and does with them what it is told.

It answers with what came of it (an error by its name), and when that was.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults.register import Attempts

from .makes import MAKES

TURN = 0.05  # seconds for which a turn takes


class Locks:
    def __init__(self, make: str, lease: int, folder: Path) -> None:
        self._make, self._lease, self._folder = MAKES[make], lease, folder
        self._lock = cache(self._new_lock)
        self._fences: dict[str, int] = {}

    def acquire(self, name: str) -> bool:
        """Wait for as long as it takes."""
        return self._noted(name, self._lock(name).acquire())

    def attempt(self, name: str) -> bool:
        """Ask once."""
        return self._noted(name, self._lock(name).acquire(blocking=False))

    def release(self, name: str) -> str:
        self._lock(name).release()
        return "released"

    def is_mine(self, name: str) -> bool:
        return self._make.is_mine(self._lock(name))

    def tells(self, name: str) -> bool:
        assert self._make.tells
        return self._make.tells(self._lock(name))

    def turn(self, name: str) -> float:
        """Wait, hold it for a moment, let go: when it was held."""
        self.acquire(name)
        held = time.monotonic()
        time.sleep(TURN)
        self.release(name)
        return held

    def turn_again(self, name: str) -> float:
        """Let go of it and ask again at once."""
        self.release(name)
        return self.turn(name)

    def write(self, name: str) -> bool:
        """Write what the lock guards, with the fencing token if it gives one: whether that was
        taken."""
        with closing(Attempts(self._folder, name)) as register:
            return register.write(self._make.label, self._fences[name])

    def clear(self, database: int) -> bool:
        """`clear()` of a cache in that database of the server."""
        from django.core.cache.backends.redis import RedisCache

        from testproject.settings import redis_database

        return RedisCache(redis_database(database), {}).clear()

    def _new_lock(self, name: str) -> Any:
        return self._make.lock(name, self._lease)

    def _noted(self, name: str, acquired: bool) -> bool:
        self._fences[name] = getattr(self._lock(name), "fence_token", None) or 0
        return acquired


def serve(
    line: Connection, environment: dict[str, str], make: str, lease: int, folder: Path
) -> None:
    os.environ |= environment
    import django

    django.setup()
    logging.disable()  # whatever happens here is meant
    threading.excepthook = lambda args: None  # so is that a package's thread dies
    locks = Locks(make, lease, folder)
    while True:
        try:
            deed, args = line.recv()
        except EOFError:
            return
        line.send((_came_of(getattr(locks, deed), *args), time.monotonic()))


def _came_of(deed: Callable[..., Any], *args: Any) -> str:
    try:
        return str(deed(*args))
    except Exception as error:
        return type(error).__name__
