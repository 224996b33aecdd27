"""Helpers for decorated functions."""

import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import MethodType
from typing import Any, TypeGuard, TypeVar

from asgiref.sync import iscoroutinefunction

R = TypeVar("R")


def is_async(function: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Return whether a call of the function must be awaited."""
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that a caller sees."""
    # Django's method_decorator makes a partial of the method, without `self`, that claims to be
    # the method.
    inner = inspect.unwrap(function, stop=_speaks_for_itself)
    if isinstance(inner, partial):
        function = partial(inner.func, *inner.args, **inner.keywords)
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # Names that exist for type checkers alone need not exist here.
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _speaks_for_itself(function: Any) -> bool:
    return isinstance(function, partial | MethodType) or hasattr(function, "__signature__")


def has_run(function: Callable[..., Any], answer: R) -> R:
    """Return the result of the function. Raises `TypeError` for a coroutine or generator, whose
    body would run without the lock."""
    if inspect.iscoroutine(answer):
        answer.close()  # It will not be awaited.
    elif not (inspect.isgenerator(answer) or inspect.isasyncgen(answer)):
        return answer
    raise TypeError(
        f"{function!r} returned a {type(answer).__name__}, which runs after the lock is released. "
        "Put the lock on the function whose call creates it."
    )
