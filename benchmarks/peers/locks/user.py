"""What a process does that has locks of one package: functions that it is asked for by their
paths. It answers with what came of it (an error by its name), and when that was."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any

from tests.faults.client import Client
from tests.faults.register import Attempts

from .makes import ASK_ONCE, MAKES

TURN = 0.05  # seconds for which a turn takes


class Locks:
    def __init__(self, client: Client, make: str, lease: int, url: str) -> None:
        self._make, self._folder, self._url = MAKES[make], client.folder, url
        self._lock = cache(lambda name: self._make.lock(name, lease))
        self._fences: dict[str, int] = {}

    def acquire(self, name: str, blocking: bool = True) -> bool:
        """Wait for as long as it takes, or ask once."""
        acquired: bool = self._lock(name).acquire(**{} if blocking else {"blocking": False})
        self._fences[name] = getattr(self._lock(name), "fence_token", None) or 0
        return acquired

    def attempt(self, name: str) -> bool:
        return self.acquire(name, blocking=False)

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

        return RedisCache(self._url.replace("/0", f"/{database}"), {}).clear()


_locks: list[Locks] = []


def be(client: Client, make: str, lease: int, url: str, asks_once: bool) -> None:
    os.environ |= {"REDIS_URL": url} | ({ASK_ONCE: "1"} if asks_once else {})
    logging.disable()  # whatever happens here is meant
    threading.excepthook = lambda args: None  # so is that a package's thread dies
    _locks.append(Locks(client, make, lease, url))


def do(client: Client, deed: str, args: Sequence[Any]) -> tuple[str, float]:
    try:
        said = str(getattr(_locks[0], deed)(*args))
    except Exception as error:
        said = type(error).__name__
    return said, time.monotonic()
