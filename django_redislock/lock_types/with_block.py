"""Detect the end of a ``with`` block if a signal handler prevents the call of `__exit__`, and tell
the blocks of one object apart. The same holds for ``async with`` and `__aexit__`.

CPython may run a signal handler right before the first instruction of `__exit__`. If the handler
raises an exception (``KeyboardInterrupt``, Celery's ``SoftTimeLimitExceeded``), no code of
`__exit__` runs, and a ``try`` inside it cannot help.

A ``with`` statement looks up `__exit__` before it calls `__enter__`. The result stays on its stack
until the block ends. `ExitMethod` returns an object that a weak reference can watch.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

R = TypeVar("R")

BoundExit: TypeAlias = partial[Any]
"""The `__exit__` of one ``with`` statement. It is destroyed when the block ends."""


class _Latest(threading.local):
    bound: "ref[BoundExit] | None" = None


_latest = _Latest()


class ExitMethod(Generic[R]):
    """Decorator for `__exit__` and `__aexit__`: each ``with`` statement gets a bound method of its
    own.

    The method gets a keyword argument `block` that identifies the ``with`` statement. On the class
    it is the plain function. `ExitStack` looks it up there, so it passes no `block`.

    The bound method is a `partial`, because CPython drops a real one before the call begins.
    """

    def __init__(self, function: Callable[..., R]) -> None:
        self._function = function

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]:
        if instance is None:
            return self._function
        bound = partial(self._function, instance, block=object())
        _latest.bound = ref(bound)
        return bound


def bound_exit(instance: object) -> BoundExit | None:
    """Return the exit method of the ``with`` statement that is calling the enter method.

    Returns None if no ``with`` statement is calling, as with `ExitStack`.
    """
    # Between the look-up of __exit__ and the call of __enter__ only a signal handler can run. The
    # check of the instance below covers that.
    latest, _latest.bound = _latest.bound, None
    bound = latest() if latest else None
    return bound if bound and bound.args[0] is instance else None
