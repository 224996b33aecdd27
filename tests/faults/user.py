"""A client that uses one lock, sync or, if its name says so, async."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django_redislock import locks

from .client import Client, Want, do, letting_go, pause, run


class User:
    def __init__(self, client: Client, name: str, options: dict[str, Any]) -> None:
        self.client = client
        self.name = name
        self.options = options
        self.is_async = "async" in client.who
        self.times = 0
        """How often it held the lock."""

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        run(what, self.is_async)

    @property
    def held(self) -> Any:
        """The lock that it holds."""
        return self.client.held[self.name]

    async def do(self, thing: Any, what: str, *args: Any, **how: Any) -> Any:
        return await do(thing, what, *args, is_async=self.is_async, **how)

    async def sleep(self, shortest: float, longest: float) -> None:
        await pause(self.client.random.uniform(shortest, longest), self.is_async)

    async def acquire(self, longest: float | None = None) -> bool:
        with self._broken_off(), Want(self.client, self.name, self.options) as want:
            acquired = want.ends(await self._acquire(want.lock_object, longest))
            self.times += acquired
            return acquired
        return False

    async def _acquire(self, lock: Any, longest: float | None) -> bool:
        if longest is None or not (self.is_async and self.client.random.random() < 0.5):
            return bool(await self.do(lock, "acquire", blocking_timeout=longest))
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):  # which cancels it
                return bool(await lock.aacquire())
        return False

    async def release(self) -> None:
        with self._broken_off(), letting_go(self.client, self.name) as held:
            await self.do(held, "release")

    async def seconds_left(self) -> float:
        info = await self.do(locks, "get", self.name)
        return info.ttl or 0 if info else 0

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """What goes wrong leaves nothing behind: from then on the next may hold it."""
        try:
            yield
        except Exception:
            self.log("free")

    def log(self, what: str, **facts: Any) -> None:
        self.client.log.write(what, lock=self.name, **facts)
