"""Compute a value once: `locks.get_or_set()` and `locks.cached()`.

A value has a read-write lock. The caller that computes it is the writer. The others wait as
readers, one for each process, so that all of them are granted the lock at the same moment: when
the value is stored.
"""

import asyncio
import inspect
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    TypedDict,
    TypeVar,
    cast,
    overload,
)

from asgiref.sync import markcoroutinefunction
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
)

from . import clock, validators
from .exceptions import LockError, LockLost, LockNotAcquired
from .identity import caller
from .introspection import is_async, is_generator, signature_of
from .names import Template, check_name, fit_name, short_repr
from .text import error_text
from .validators import Seconds

if TYPE_CHECKING:
    from .lock_types import ReadLock
    from .manager import LockManager

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger("django_redislock")

WITH_EXPIRY = "django_redislock.with_expiry"
"""The first item of a list that is stored instead of a value: when the value expires, and the
value. It is a list, because serializers such as JSON and msgpack return a tuple as a list."""

MARKER_TIMEOUT_SECONDS = 24 * 3600
"""A value whose computation takes longer is not stored."""

LOG_INTERVAL_SECONDS = 5
"""A process logs that a server is away this often at most."""

_MISSING: Any = object()


class CacheOptions(TypedDict, total=False):
    """The options of `LockManager.get_or_set`, which describes them."""

    cache: str
    stale: Seconds
    blocking_timeout: Seconds | None
    lease: Seconds | None
    version: int | None


# Sync and async code share the flows below: generators that yield the calls to make.


class Call(NamedTuple):
    """A call of a method. Async code awaits the method whose name begins with ``a``."""

    target: Any
    method: str
    args: tuple[Any, ...] = ()


Flow = Generator[Call, Any, R]


def _run(flow: Flow[R]) -> R:
    try:
        call = next(flow)
        while True:
            try:
                result = getattr(call.target, call.method)(*call.args)
            except BaseException as error:
                call = flow.throw(error)
            else:
                call = flow.send(result)
    except StopIteration as end:
        return cast("R", end.value)


async def _arun(flow: Flow[R]) -> R:
    try:
        call = next(flow)
        while True:
            try:
                result = await getattr(call.target, f"a{call.method}")(*call.args)
            except BaseException as error:
                call = flow.throw(error)
            else:
                call = flow.send(result)
    except StopIteration as end:
        return cast("R", end.value)


class _Computation:
    """A computation that runs. Code that outlives it can still have its context."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = True


_computations: ContextVar[tuple[_Computation, ...]] = ContextVar(
    "django_redislock_computations", default=()
)


_waits: dict[tuple[int, str, str], threading.Event] = {}
"""The waits of this process by its id, because a forked child must not wait for its parent."""

_async_waits: dict[tuple[asyncio.AbstractEventLoop, str, str], asyncio.Event] = {}


class Found(NamedTuple):
    """A value that was found in the cache."""

    value: Any
    is_fresh: bool


def _found(stored: Any) -> Found | None:
    """Return what was read from the cache, or None if there is no value."""
    if stored is _MISSING:
        return None
    if not isinstance(stored, list) or len(stored) != 3:
        return Found(stored, is_fresh=True)
    mark, expires_at, value = stored
    if not isinstance(mark, str) or mark != WITH_EXPIRY:
        return Found(stored, is_fresh=True)
    return Found(value, is_fresh=time.time() < expires_at)


def _is_unreachable(error: BaseException | None) -> bool:
    """Return whether a cache or the locks failed because their server did.

    Missing rights are a mistake in the settings. Clients of caches wrap the error of a connection
    in one of their own.
    """
    while error is not None:
        if isinstance(error, LockError | AuthenticationError | AuthorizationError):
            return False
        if isinstance(error, NoPermissionError):
            return False
        if isinstance(error, RedisError | OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


class _LogInterval:
    """Whether to log that a server is away. In an outage each miss fails, so once in a while is
    enough."""

    def __init__(self) -> None:
        self._next = -math.inf

    def is_over(self) -> bool:
        now = clock.now()
        if now < self._next:
            return False
        self._next = now + LOG_INTERVAL_SECONDS
        return True


_log_interval = _LogInterval()


class Slot:
    """The place of one value in a cache.

    Args:
        manager: The manager of the lock.
        key: The key in the cache.
        cache: The cache alias that stores the value.
        version: The version of the key. None means the version of the cache.
    """

    def __init__(self, manager: "LockManager", key: str, cache: str, version: int | None) -> None:
        self.manager = manager
        self.key = key
        self.cache = caches[cache]
        self.version = version
        is_default = version is None or version == self.cache.version
        self.lock_name = fit_name(f"cache:{cache}{'' if is_default else f':{version}'}:{key}")
        self.marker_key = f"{key}:computing"

    def read(self) -> Flow[Found | None]:
        stored = yield Call(self.cache, "get", (self.key, _MISSING, self.version))
        return _found(stored)

    # A computation sets a marker before it begins. To invalidate the value, remove the marker and
    # then the value. A computation whose marker is gone does not store its value. It looks again
    # after it has stored the value, because no cache can do both in one step.

    def mark(self, marker: str) -> Flow[None]:
        yield Call(
            self.cache, "set", (self.marker_key, marker, MARKER_TIMEOUT_SECONDS, self.version)
        )

    def unmark(self) -> Flow[None]:
        yield Call(self.cache, "delete", (self.marker_key, self.version))

    def has_mark(self, marker: str) -> Flow[bool]:
        found = yield Call(self.cache, "get", (self.marker_key, None, self.version))
        return bool(found == marker)

    def delete(self) -> Flow[None]:
        yield Call(self.cache, "delete", (self.key, self.version))

    def invalidate(self) -> Flow[None]:
        yield from self.unmark()
        yield from self.delete()


class Limits:
    """The valid options of a value that are numbers of seconds.

    Args:
        timeout: The seconds until the value expires. None means never.
        options: The other options of `LockManager.get_or_set`.
    """

    def __init__(self, timeout: Seconds | None, options: CacheOptions) -> None:
        validators.check_options("get_or_set", options, CacheOptions.__annotations__)
        self.timeout = None if timeout is None else validators.seconds("timeout", timeout)
        self.stale = validators.at_least("stale", options.get("stale", 0))
        self.lease = options.get("lease")
        self.blocking_timeout = validators.wait(
            "blocking_timeout", options.get("blocking_timeout")
        )
        if self.lease is not None:
            self.lease = validators.lease("lease", self.lease)
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(
                "timeout must be positive, or None for a value that never expires, got "
                f"{short_repr(timeout)}"
            )
        if self.timeout is None and self.stale:
            raise ValueError(
                f"stale={self.stale:g} cannot be used with timeout=None, because the value never "
                "expires. Omit one of the two."
            )


class Value:
    """A value of a cache, and how it is computed once.

    Args:
        slot: The place of the value.
        default: The value, or a callable that returns it.
        limits: When the value expires, and how long its callers wait.
    """

    def __init__(self, slot: Slot, default: Any, limits: Limits) -> None:
        self.slot = slot
        self.default = default
        self.limits = limits
        self._is_stored = False

    def get(self, found: Found | None) -> Flow[Any]:
        """Return the value, which was not found, or is not fresh."""
        self._refuse_recursion()
        if found and not self.limits.stale:
            found = None
        try:
            writer = self._lock(self.slot.manager.write_lock)
            is_writer = yield Call(writer, "acquire", (False,))
            if not is_writer and found:
                return found.value
            if not is_writer:
                deadline = self._deadline()
                yield Call(self, "wait_together", (deadline,))
                found = yield from self.slot.read()
                if found and found.is_fresh:
                    return found.value
                # The computation failed, or its value was invalidated: the next waiter computes.
                yield from self._acquire(writer, deadline)
        except Exception as error:
            if not _is_unreachable(error):
                raise
            if found and self.limits.stale:
                return found.value
            self._log_unreachable(error)
            return (yield from self._compute(None))
        return (yield from self._compute_as(writer))

    def without_cache(self, error: Exception) -> Flow[Any]:
        """Return the value without the cache, whose server cannot be reached, and without a lock,
        because nobody could get the value from the holder."""
        self._refuse_recursion()
        self._log_unreachable(error)
        return (yield from self._computed())

    def _log_unreachable(self, error: Exception) -> None:
        if _log_interval.is_over():
            logger.warning(
                "Value computed without a lock: key=%r error=%s",
                *(self.slot.key, error_text(error)),
            )

    def _refuse_recursion(self) -> None:
        for each in _computations.get():
            if each.name == self.slot.lock_name and each.is_running:
                raise LockError(
                    f"The computation of {short_repr(self.slot.key)} asks for its own value, so "
                    "it would wait for itself. Call the function that computes it instead.",
                    lock_name=self.slot.lock_name,
                )

    def _lock(self, make: "Callable[..., ReadLock]") -> "ReadLock":
        lock = make(self.slot.lock_name, timeout=self.limits.lease)
        lock.rides_outages = False  # to compute the value is better than to wait for a server
        return lock

    def _deadline(self) -> float | None:
        seconds = self.limits.blocking_timeout
        return None if seconds is None else clock.now() + seconds

    # One caller of a process or event loop waits for its others, too, because each grant takes a
    # round trip. If its wait fails, they queue as writers, as after a failed computation.

    def wait_together(self, deadline: float | None) -> None:
        """Wait until the computation of another caller has ended."""
        if caller()[1]:  # the lock raises the error: a wait would block the event loop
            _run(self._wait_as_reader(deadline))
            return
        key = os.getpid(), self.slot.manager.alias, self.slot.lock_name
        ended = threading.Event()
        first = _waits.setdefault(key, ended)
        if first is not ended:
            first.wait(_seconds_until(deadline))
            return
        try:
            _run(self._wait_as_reader(deadline))
        finally:
            del _waits[key]
            ended.set()

    async def await_together(self, deadline: float | None) -> None:
        """Async version of `wait_together()`."""
        key = asyncio.get_running_loop(), self.slot.manager.alias, self.slot.lock_name
        ended = asyncio.Event()
        first = _async_waits.setdefault(key, ended)
        if first is not ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(first.wait(), _seconds_until(deadline))
            return
        try:
            await _arun(self._wait_as_reader(deadline))
        finally:
            del _async_waits[key]
            ended.set()

    def _wait_as_reader(self, deadline: float | None) -> Flow[None]:
        """Wait for a read lock. All readers are granted it at once."""
        reader = self._lock(self.slot.manager.read_lock)
        yield from self._acquire(reader, deadline)
        yield from self._release(reader)

    def _acquire(self, lock: "ReadLock", deadline: float | None) -> Flow[None]:
        if not (yield Call(lock, "acquire", (True, _seconds_until(deadline)))):
            raise LockNotAcquired(
                f"The value of {short_repr(self.slot.key)} was not computed within "
                f"{self.limits.blocking_timeout:g} s",
                lock_name=self.slot.lock_name,
            )

    def _release(self, lock: "ReadLock") -> Flow[bool]:
        """Release a lock, and return whether it was held until then."""
        try:
            yield Call(lock, "release")
        except LockLost:
            return False
        except RedisError as error:  # it is released in the background
            logger.warning(
                "Lock not released after computation: name=%r error=%s",
                *(lock.name, error_text(error)),
            )
        return True

    def _compute_as(self, writer: "ReadLock") -> Flow[Any]:
        """Return the value as the holder of the write lock, which is released."""
        try:
            found = yield from self._read_again()
            if found and found.is_fresh:
                value = found.value
            else:
                value = yield from self._compute(writer)
        except GeneratorExit:  # the event loop is closed, so nothing can be released
            raise
        except BaseException:
            yield from self._release(writer)
            raise
        was_held = yield from self._release(writer)
        if self._is_stored and not was_held:
            yield from self._attempt(self.slot.delete())
        return value

    def _read_again(self) -> Flow[Found | None]:
        """Return the value if another caller has stored it since this one looked."""
        return (yield from self._attempt(self.slot.read()))

    def _compute(self, writer: "ReadLock | None") -> Flow[Any]:
        """Return the computed value, and store it."""
        marker = secrets.token_hex(8)
        try:
            yield from self._attempt(self.slot.mark(marker))
            value = yield from self._computed()
            if not (writer and writer.lost):
                yield from self._attempt(self._store(marker, value))
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._attempt(self.slot.unmark())
            raise
        return value

    def _computed(self) -> Flow[Any]:
        computation = _Computation(self.slot.lock_name)
        outer = (each for each in _computations.get() if each.is_running)
        _computations.set((*outer, computation))
        try:
            return (yield Call(self, "compute"))
        finally:
            computation.is_running = False

    def _store(self, marker: str, value: Any) -> Flow[None]:
        if not (yield from self.slot.has_mark(marker)):
            return
        slot = self.slot
        stored = value
        seconds = self.limits.timeout
        stale = self.limits.stale
        if seconds is not None and (stale or seconds % 1):
            stored = [WITH_EXPIRY, time.time() + seconds, value]
            seconds = math.ceil(seconds + stale)  # some caches ignore fractions of a second
        yield Call(slot.cache, "set", (slot.key, stored, seconds, slot.version))
        if not (yield from slot.has_mark(marker)):
            yield from slot.delete()
            return
        self._is_stored = True
        yield from slot.unmark()

    def _attempt(self, flow: Flow[R]) -> Flow[R | None]:
        """Use the cache if its server responds."""
        try:
            return (yield from flow)
        except Exception as error:
            if not _is_unreachable(error):
                raise
            if _log_interval.is_over():
                logger.warning(
                    "Cache not reached: key=%r error=%s", *(self.slot.key, error_text(error))
                )
            return None

    def compute(self) -> Any:
        """Compute the value."""
        value = self.default() if callable(self.default) else self.default
        if inspect.iscoroutine(value):
            value.close()  # this avoids the warning that it was never awaited
            raise TypeError(
                f"default of {short_repr(self.slot.key)} returned a coroutine. Use "
                "'await locks.aget_or_set(...)' for a coroutine function."
            )
        return self._checked(value)

    async def acompute(self) -> Any:
        """Async version of `compute()`. The callable can be a coroutine function."""
        value = self.default() if callable(self.default) else self.default
        if inspect.isawaitable(value):
            value = await value
        return self._checked(value)

    def _checked(self, value: Any) -> Any:
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise TypeError(
                f"default of {short_repr(self.slot.key)} returned a generator, which no cache can "
                "store. Return a list."
            )
        return value


def _seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0, deadline - clock.now())


def _value(
    manager: "LockManager", key: str, default: Any, timeout: Any, options: CacheOptions
) -> Value:
    slot = Slot(manager, key, options.get("cache", DEFAULT_CACHE_ALIAS), options.get("version"))
    return Value(slot, default, Limits(timeout, options))


def get_or_set(
    manager: "LockManager", key: str, default: Any, timeout: Any, options: CacheOptions
) -> Any:
    """Return a value of a cache; see `LockManager.get_or_set`."""
    # A hit ends here, without a lock, a flow or a check of the other arguments.
    try:
        cache = caches[options.get("cache", DEFAULT_CACHE_ALIAS)]
        stored = cache.get(key, _MISSING, options.get("version"))
    except Exception as error:
        if not _is_unreachable(error):
            raise
        return _run(_value(manager, key, default, timeout, options).without_cache(error))
    if stored is not _MISSING and not isinstance(stored, list):
        return stored
    found = _found(stored)
    if found and found.is_fresh:
        return found.value
    return _run(_value(manager, key, default, timeout, options).get(found))


async def aget_or_set(
    manager: "LockManager",
    key: str,
    default: Any,
    timeout: Any,  # noqa: ASYNC109  of the value, not of the call
    options: CacheOptions,
) -> Any:
    """Async version of `get_or_set()`."""
    try:
        cache = caches[options.get("cache", DEFAULT_CACHE_ALIAS)]
        stored = await cache.aget(key, _MISSING, options.get("version"))
    except Exception as error:
        if not _is_unreachable(error):
            raise
        return await _arun(_value(manager, key, default, timeout, options).without_cache(error))
    if stored is not _MISSING and not isinstance(stored, list):
        return stored
    found = _found(stored)
    if found and found.is_fresh:
        return found.value
    return await _arun(_value(manager, key, default, timeout, options).get(found))


class CachedFunction(Generic[P, R]):
    """A function whose results are cached. Made by `LockManager.cached`.

    Args:
        function: The function, or coroutine function.
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
        self._options = options
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
        if instance is None:
            return self
        bound = object.__new__(type(self))
        vars(bound).update(vars(self), _bound=(instance,))
        return bound

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a call, from the cache or computed."""
        all_args = (*self._bound, *args)
        key = self._key_of_call(all_args, kwargs)
        compute = partial(self._function, *all_args, **kwargs)
        found = (aget_or_set if self._is_async else get_or_set)(
            self._manager, key, compute, self._timeout, self._options
        )
        return cast("R", found)

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Delete the result of a call from the cache.

        A computation that began before does not store its result, whatever process it runs in.

        Args:
            *args: The arguments of the call.
            **kwargs: The keyword arguments of the call.
        """
        _run(self._slot(args, kwargs).invalidate())

    async def ainvalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Async version of `invalidate()`."""
        await _arun(self._slot(args, kwargs).invalidate())

    def _slot(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Slot:
        key = self._key_of_call((*self._bound, *args), kwargs)
        cache = self._options.get("cache", DEFAULT_CACHE_ALIAS)
        return Slot(self._manager, key, cache, self._options.get("version"))


def _key_of_call(
    function: Callable[..., Any], key: object
) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """Return a function that returns the key for the args and kwargs of a call."""
    if isinstance(key, str):
        signature = signature_of(function)
        template = Template(key, signature, "key")
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
