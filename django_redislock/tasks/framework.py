"""The task frameworks, and the function that runs under its lock."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from django_redislock.introspection import is_async

from .call import Call
from .execution import Execution
from .single import MARK, Single

if TYPE_CHECKING:
    from .options import Options

Function = Callable[..., Any]


class Framework(Protocol):
    """A task framework, such as Celery."""

    awaits: bool
    """Whether it awaits coroutine functions."""

    def is_task(self, target: Any) -> bool:
        """Return whether the decorator is above this framework's task decorator."""

    def decorate(self, options: Options, task: Any) -> Any:
        """Return the task that runs as a single instance."""

    def execution(
        self, single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Execution | None:
        """Return the execution of a call, or None if it is not for a task."""


frameworks: list[Framework] = []
"""Those that are installed."""

decorated: WeakSet[Function] = WeakSet()
"""All functions with `single_instance`."""


def wrap(
    options: Options, function: Function, framework: Framework | None = None, added_args: int = 0
) -> Function:
    """Return the function that holds its lock while it runs; see `Single` for the arguments."""
    single = Single(options, function, framework, added_args)
    alone = _async_wrapper(single) if is_async(function) else _wrapper(single)
    single.decorated = alone
    setattr(alone, MARK, single)
    decorated.add(alone)
    # Celery reads the signature of the outermost function alone.
    alone.__signature__ = single.signature  # type: ignore[attr-defined]  # read by inspect
    return alone


def _wrapper(single: Single) -> Function:
    @functools.wraps(single.function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        for framework in frameworks:
            if execution := framework.execution(single, args, kwargs):
                return execution.run()
        return Execution(Call(single, args, kwargs)).run()

    return alone


def _async_wrapper(single: Single) -> Function:
    if single.options.on_lost == "abort":
        raise ValueError(
            "on_lost='abort' cannot interrupt a coroutine function. Check current_lock().lost, or"
            " pass a function."
        )

    @functools.wraps(single.function)
    async def alone(*args: Any, **kwargs: Any) -> Any:
        for framework in frameworks:
            if framework.awaits and (execution := framework.execution(single, args, kwargs)):
                return await execution.arun()
        return await Execution(Call(single, args, kwargs)).arun()

    return alone
