"""Connection pools that hand out an idle connection without the checks of redis-py.

Before each command, redis-py asks the operating system whether the server has closed the
connection or has sent something. With the other work of the pool, this takes a fifth of the
processor time of an uncontended cycle. `engine.transport` does without it: it leaves no reply
unread, and if the server has closed an idle connection, it uses another one.
"""

from collections import deque
from contextlib import suppress
from inspect import signature
from typing import Any

from redis import ConnectionPool, asyncio


class _Keeper:
    """A pool that keeps connections for `transport`. For redis-py, they are still in use."""

    keeps: bool
    """Whether it keeps connections. Not if redis-py has to check them, or to renew their
    credentials, when they are released."""

    kept: deque[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        checked = "health_check_interval", "credential_provider"
        self.keeps = not any(map(options.get, checked))
        self.kept = deque()
        super().__init__(*args, **options)

    def reset(self) -> None:
        self.kept.clear()
        super().reset()  # type: ignore[misc]  # a mixin


class LockPool(_Keeper, ConnectionPool):
    """A pool of a sync client."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        with suppress(IndexError):
            self.release(self.kept.pop())
        return super().get_connection(*args, **options)

    def disconnect(self, inuse_connections: bool = True) -> None:
        with suppress(IndexError):
            while True:
                self.release(self.kept.pop())
        super().disconnect(inuse_connections)


class AsyncLockPool(_Keeper, asyncio.ConnectionPool):
    """A pool of a client of ``redis.asyncio``."""

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        if self.kept:
            await self.release(self.kept.pop())
        return await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]

    async def disconnect(self, inuse_connections: bool = True) -> None:
        while self.kept:
            await self.release(self.kept.pop())
        await super().disconnect(inuse_connections)


def is_made_by_redis_py(pool: Any) -> bool:
    """Return whether redis-py, and no subclass, makes the pool's connections and hands them out.

    Only then another pool with the same options has the same connections.
    """
    if isinstance(pool, LockPool | AsyncLockPool):
        return True
    methods = (getattr(type(pool), name, None) for name in ("make_connection", "get_connection"))
    return all(getattr(each, "__module__", "").startswith("redis.") for each in methods)


def no_maintenance_notifications(pool_class: type) -> dict[str, Any]:
    """Return the option of a pool that turns maintenance notifications off, if it has them."""
    if "maint_notifications_config" not in signature(pool_class).parameters:
        return {}  # redis-py before 7, or before 8 in asyncio
    from redis.maint_notifications import MaintNotificationsConfig

    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
