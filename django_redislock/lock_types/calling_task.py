"""Let an async method act for the task that calls it.

`asyncio.gather`, `asyncio.shield` and `create_task`, and on Python 3.11 `asyncio.wait_for`, run a
coroutine in a task of its own. That task ends with the coroutine, so it must not be the holder of
a lock. The holder is the task that calls the method, as in `asyncio.gather(lock.aacquire())`.
"""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import markcoroutinefunction

from ..identity import Owner, current_owner

L = TypeVar("L")
P = ParamSpec("P")
R = TypeVar("R")


def for_calling_task(
    method: Callable[Concatenate[L, Owner, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[L, P], Coroutine[Any, Any, R]]:
    """Pass the task or thread that calls an async method as its first argument."""

    @wraps(method)
    def call(lock: L, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return method(lock, current_owner(), *args, **kwargs)

    signature = inspect.signature(method)
    visible = [each for name, each in signature.parameters.items() if name != "caller"]
    call.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    return markcoroutinefunction(call)
