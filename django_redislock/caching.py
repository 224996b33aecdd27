"""Compute a value once: `locks.get_or_set()` and `locks.cached()`. `cache_miss` has the lock."""

import math
import secrets
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from asgiref.sync import markcoroutinefunction
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.exceptions import ImproperlyConfigured

from .cache_miss import (
    INVALIDATION_TIMEOUT_SECONDS,
    MISSING,
    AsyncCalls,
    CacheOptions,
    Limits,
    Miss,
    SyncCalls,
    Wanted,
    found_in,
    invalidation_key,
    run_sync,
)
from .introspection import is_async, is_generator, signature_of
from .names import Template, check_name, short_repr
from .validators import Seconds

if TYPE_CHECKING:
    from .manager import LockManager

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


def get_or_set(
    manager: "LockManager",
    key: str,
    default: Any,
    timeout: Seconds | None,
    cache: str,
    version: int | None,
    options: Mapping[str, Any],
) -> Any:
    """Return a value of a cache; see `LockManager.get_or_set`."""
    stored = MISSING
    failure = None
    try:
        stored = caches[cache].get(key, MISSING, version)
    except Exception as error:
        failure = error
    # This answers most hits without another call.
    has_expiry = type(stored) is list and len(stored) == 3 and type(stored[0]) is str
    if stored is not MISSING and not has_expiry:
        return stored
    found = found_in(stored)
    if found and found.is_fresh:
        return found.value
    wanted = Wanted(manager, key, default, timeout, cache, version, options)
    return run_sync(Miss(SyncCalls(), wanted).get(found, failure))


async def aget_or_set(
    manager: "LockManager",
    key: str,
    default: Any,
    timeout: Seconds | None,  # noqa: ASYNC109  of the value, not of the call
    cache: str,
    version: int | None,
    options: Mapping[str, Any],
) -> Any:
    """Async version of `get_or_set()`."""
    stored = MISSING
    failure = None
    try:
        stored = await caches[cache].aget(key, MISSING, version)
    except Exception as error:
        failure = error
    found = found_in(stored)
    if found and found.is_fresh:
        return found.value
    wanted = Wanted(manager, key, default, timeout, cache, version, options)
    return await Miss(AsyncCalls(), wanted).get(found, failure)


class KeyTemplate(Template):
    """A key with fields that get their values from the arguments of a call.

    An attribute or item that is None is refused, because all calls without the value would share
    a result. All anonymous users would, for example. An argument that is None is a value.
    """

    def _value_of(self, field: str, values: Mapping[str, Any]) -> Any:
        value = super()._value_of(field, values)
        if value is None and field not in values:
            raise ValueError(
                f"{{{field}}} is None, so calls that lack it would share a result. To allow that, "
                "use a function that returns the key."
            )
        return value


class CachedFunction(Generic[P, R]):
    """A function whose results are cached. Made by `LockManager.cached`.

    Args:
        function: The function, coroutine function, class method or static method.
        manager: The manager of the locks.
        key: The template of the keys, or a function of the call's arguments that returns the key.
        timeout: The seconds until a result expires. None means never.
        options: The other options of `LockManager.get_or_set`.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[P, R],
        manager: "LockManager",
        key: str | Callable[..., str],
        timeout: Seconds | None,
        options: CacheOptions,
    ) -> None:
        decorated: Any = function
        self._is_class_method = isinstance(decorated, classmethod)
        self._is_static_method = isinstance(decorated, staticmethod)
        if self._is_class_method or self._is_static_method:
            function = decorated.__func__
        if is_generator(function):
            raise TypeError(
                f"locks.cached() cannot decorate the generator function {function!r}, whose "
                "result no cache can store. Return a list."
            )
        Limits(timeout, options)  # a mistake is found where the function is defined
        self._function = function
        self._manager = manager
        self._bound: tuple[Any, ...] = ()
        self._key_of_call = _key_of_call(function, key)
        self._timeout = timeout
        self._options = options.copy()
        self._cache = self._options.pop("cache", DEFAULT_CACHE_ALIAS)
        self._version = self._options.pop("version", None)
        self._is_async = is_async(function)
        update_wrapper(self, function)
        if self._is_async:
            markcoroutinefunction(self)

    def __repr__(self) -> str:
        return f"<cached {self._function!r}>"

    def __reduce__(self) -> Any:
        if not self._bound:
            return self.__qualname__
        return getattr, (*self._bound, self.__name__)

    @overload
    def __get__(self, instance: None, owner: type) -> "CachedFunction[P, R]": ...
    @overload
    def __get__(
        self: "CachedFunction[Concatenate[S, Q], R]", instance: S, owner: type
    ) -> "CachedFunction[Q, R]": ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if self._is_class_method:
            instance = owner
        if instance is None or self._is_static_method:
            return self
        bound = object.__new__(type(self))
        vars(bound).update(vars(self), _bound=(instance,))
        return bound

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a call, from the cache or computed."""
        all_args = (*self._bound, *args)
        get = aget_or_set if self._is_async else get_or_set
        found: Any = get(
            self._manager,
            self._key_of_call(all_args, kwargs),
            partial(self._function, *all_args, **kwargs),
            self._timeout,
            self._cache,
            self._version,
            self._options,
        )
        return cast("R", found)

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Delete the result of a call from the cache.

        A computation that began before does not store its result, whatever process it runs in.

        Args:
            *args: The arguments of the call.
            **kwargs: The keyword arguments of the call.
        """
        key = self._key_of_call((*self._bound, *args), kwargs)
        cache = caches[self._cache]
        cache.set(*self._invalidation(key))  # in this order: see `Miss`
        cache.delete(key, self._version)

    async def ainvalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Async version of `invalidate()`."""
        key = self._key_of_call((*self._bound, *args), kwargs)
        cache = caches[self._cache]
        await cache.aset(*self._invalidation(key))
        await cache.adelete(key, self._version)

    def _invalidation(self, key: str) -> tuple[str, str, float, int | None]:
        """Return the arguments of `set()` that tell computations of an invalidation."""
        name = invalidation_key(key)
        return name, secrets.token_hex(8), INVALIDATION_TIMEOUT_SECONDS, self._version


def _key_of_call(
    function: Callable[..., Any], key: object
) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """Return a function that returns the key for the args and kwargs of a call."""
    if isinstance(key, str):
        signature = signature_of(function)
        template = KeyTemplate(key, signature, "key")
        if signature.parameters and not template.has_fields:
            parameters = ", ".join(signature.parameters)
            raise ImproperlyConfigured(
                f"key={short_repr(key)} has no field, so calls with different arguments would get "
                f"the same value. Add fields for the function's parameters ({parameters}), or use "
                "a function that returns the key."
            )
        return template.of_call
    if not callable(key) or is_async(key):
        raise TypeError(
            "key must be a str, or a function of the call's arguments that returns one, got "
            f"{short_repr(key)}"
        )
    make = key
    return lambda args, kwargs: check_name(make(*args, **kwargs), "key", max_bytes=math.inf)
