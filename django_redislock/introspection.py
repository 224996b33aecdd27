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
    """Return whether the function is a sync or async generator function."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that a caller sees."""
    # Django's method_decorator makes a partial of the method, without `self`, that claims to be
    # the method.
    inner = inspect.unwrap(function, stop=_has_own_signature)
    if isinstance(inner, partial):
        function = partial(inner.func, *inner.args, **inner.keywords)
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # Annotations can contain names that exist for type checkers only.
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _has_own_signature(function: Any) -> bool:
    return isinstance(function, partial | MethodType) or hasattr(function, "__signature__")


def reject_deferred_result(function: Callable[..., Any], result: R) -> R:
    """Return the result of a function that ran under a lock.

    Raises:
        TypeError: The result is a coroutine or generator. Its body would run without the lock.
    """
    if inspect.iscoroutine(result):
        result.close()  # This avoids the warning that it was never awaited.
    elif not (inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    raise TypeError(
        f"{function!r} returned a {type(result).__name__}, which runs after the lock is released. "
        "Put the lock on the function whose call creates it."
    )
