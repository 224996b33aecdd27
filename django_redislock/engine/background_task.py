"""Tasks of this package that serve an event loop in the background."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any


class BackgroundTask(asyncio.Task[None]):
    """A task that nobody awaits.

    If a program calls `loop.close()` alone, the loop leaves its tasks pending, and asyncio logs
    "Task was destroyed but it is pending!" for each. For a task of this package, neither the
    program nor its author can do anything about that. Its connections close with it.
    """

    def __del__(self) -> None:
        if self.done():
            super().__del__()


def start(coroutine: Coroutine[Any, Any, None], name: str) -> BackgroundTask:
    """Start a task of the running event loop.

    It has an empty context, because it is not part of the request of the caller.
    """
    loop = asyncio.get_running_loop()
    return BackgroundTask(coroutine, loop=loop, name=name, context=Context())


def raise_cancellation() -> None:
    """Raise `CancelledError` if this task was cancelled, and redis-py has not noticed.

    It calls `asyncio.wait_for()`, which before Python 3.12 returns a result that comes at the
    moment of the cancellation. The task would then run on, and `asyncio.run()` wait for its end.
    """
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError
