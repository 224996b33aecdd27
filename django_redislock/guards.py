"""Protect a view from a second request at the same time: `locks.guard()`."""

import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import proxy

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from redis.exceptions import RedisError

from . import validators
from .exceptions import LockError, LockLost, LockNotAcquired, LockNotOwnedError
from .introspection import is_async, is_generator, reject_deferred_result, signature_of
from .lock_types import transactions
from .lock_types.options import MoreOptions
from .names import Template, short_repr
from .text import error_text
from .validators import Seconds

if TYPE_CHECKING:
    from .lock_types import Mutex
    from .manager import LockManager

V = TypeVar("V", bound=Callable[..., Any])

logger = logging.getLogger("django_redislock")

RETRY_AFTER_SECONDS = 1, 60
"""The shortest and the longest ``Retry-After``, if it depends on the lease."""

BUSY_STATUS = 409
BUSY_TEXT = "This request is already being processed. Try again later."


class GuardOptions(MoreOptions, total=False):
    """The options of the lock of a guard: all of `LockManager.lock` except `blocking`."""

    timeout: Seconds | None
    blocking_timeout: Seconds | None


class RequestTemplate(Template):
    """A lock name with fields that get their values from a request and the arguments of a view.

    A field whose value is None is refused, because all requests without the value would share a
    lock. All anonymous users would, for example.
    """

    def _value_of(self, field: str, values: Mapping[str, Any]) -> Any:
        try:
            value = super()._value_of(field, values)
        except (LookupError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the request has no {{{field}}} ({type(error).__name__}: {error})"
            ) from error
        if value is None:
            raise ValueError(f"{{{field}}} is None in this request")
        if getattr(value, "pk", value) is None:
            kind = value.__class__.__name__  # of the user that a lazy object stands for
            raise ValueError(f"{{{field}}} is an instance of {kind} without a primary key")
        return value


class Guard:
    """A guard of views. Made by `LockManager.guard`, which describes the arguments."""

    def __init__(
        self,
        manager: "LockManager",
        name: str,
        status: int,
        retry_after: Seconds | None,
        on_busy: Callable[..., Any] | None,
        options: GuardOptions,
    ) -> None:
        if "blocking" in options:
            raise TypeError(
                "guard() does not accept blocking. Give blocking_timeout to let a request wait."
            )
        self._manager = manager
        self._name = name
        self._status = validators.count("status", status, least=300, most=599)
        self._retry_after = retry_after
        if retry_after is not None:
            self._retry_after = validators.at_least("retry_after", retry_after)
        self._on_busy = on_busy
        if not (on_busy is None or callable(on_busy)):
            raise TypeError(f"on_busy must be a view, got {short_repr(on_busy)}")
        self._options = options
        manager.lock(name, **self._lock_options())  # a mistake is found where the view is defined

    def __call__(self, view: V) -> V:
        """Decorate a view.

        Args:
            view: A sync or async view, or a method that is one.

        Raises:
            django.core.exceptions.ImproperlyConfigured: The name has a field that is not a
                parameter of the view.
            TypeError: The view is a class or a generator function. Or `on_busy` is async and the
                view is not. Or the view is async and the guard has `release_on_commit`.
        """
        if isinstance(view, type):
            raise TypeError(
                f"locks.guard() cannot decorate the class {view.__name__}. Decorate one of its "
                "methods, such as post(), or use django.utils.decorators.method_decorator."
            )
        if is_generator(view):
            raise TypeError(f"locks.guard() cannot decorate the generator function {view!r}")
        template = RequestTemplate(self._name, signature_of(view))
        if is_async(view):
            if self._options.get("release_on_commit"):
                raise TypeError(
                    f"release_on_commit is not supported for the async view {view!r}, because "
                    "Django has no transactions in async code. Make the view synchronous."
                )

            @wraps(view)
            async def aguarded(*args: Any, **kwargs: Any) -> Any:
                if _request(args, kwargs).method == "OPTIONS":
                    return await view(*args, **kwargs)
                return await self._arespond(view, template, args, kwargs)

            return cast("V", aguarded)

        if self._on_busy is not None and is_async(self._on_busy):
            raise TypeError(f"on_busy of the synchronous view {view!r} must be synchronous, too")

        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if _request(args, kwargs).method == "OPTIONS":
                return view(*args, **kwargs)
            return self._respond(view, template, args, kwargs)

        return cast("V", guarded)

    def _respond(
        self, view: Callable[..., Any], template: Template, args: Any, kwargs: Any
    ) -> Any:
        options = self._lock_options()
        options.setdefault("release_on_commit", _last_to_commit() or False)
        lock = self._manager.lock(template.of_call(args, kwargs), **options)
        with ExitStack() as held:
            try:
                held.enter_context(lock)
            except LockNotAcquired as error:
                refusal = error
            else:
                response = reject_deferred_result(view, view(*args, **kwargs))
                if getattr(response, "streaming", False):
                    _release_when_closed(response, held.pop_all(), lock)
                else:
                    with _response_first(lock):
                        held.close()
                return response
        if self._on_busy is None:
            return self._busy_response(args, kwargs, refusal)
        return self._with_retry_after(self._on_busy(*args, **kwargs), refusal)

    async def _arespond(
        self, view: Callable[..., Any], template: Template, args: Any, kwargs: Any
    ) -> Any:
        try:
            name = template.of_call(args, kwargs)
        except SynchronousOnlyOperation:  # a field reads the database, as `request.user` does
            name = await sync_to_async(template.of_call)(args, kwargs)
        lock = self._manager.lock(name, **self._lock_options())
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(lock)
            except LockNotAcquired as error:
                refusal = error
            else:
                response = await view(*args, **kwargs)
                if getattr(response, "streaming", False):
                    # As Django does: it calls synchronous code.
                    await sync_to_async(response.close)()
                    raise _streaming_error(view)
                with _response_first(lock):
                    await held.aclose()
                return response
        if self._on_busy is None:
            return self._busy_response(args, kwargs, refusal)
        if is_async(self._on_busy):
            response = await self._on_busy(*args, **kwargs)
        else:
            response = await sync_to_async(self._on_busy)(*args, **kwargs)
        return self._with_retry_after(response, refusal)

    def _lock_options(self) -> dict[str, Any]:
        waits = self._options.get("blocking_timeout") is not None
        return {**self._options, "blocking": waits}

    def _busy_response(
        self, args: Iterable[Any], kwargs: Mapping[str, Any], refusal: LockNotAcquired
    ) -> HttpResponseBase:
        request = _request(args, kwargs)
        return self._with_retry_after(busy_response(request, self._status), refusal)

    def _with_retry_after(
        self, response: HttpResponseBase, refusal: LockNotAcquired
    ) -> HttpResponseBase:
        if not isinstance(response, HttpResponseBase):
            raise TypeError(
                f"on_busy {self._on_busy!r} must return a response, but returned "
                f"{short_repr(response)}"
            )
        seconds = self._retry_after
        response.headers.setdefault(
            "Retry-After", retry_after(refusal) if seconds is None else _whole_seconds(seconds)
        )
        return response


def busy_response(request: Any, status: int) -> HttpResponse:
    """Return the response to a request that was refused, in the format of its framework."""
    if _is_rest_request(request):
        from rest_framework.response import Response

        return cast("HttpResponse", Response({"detail": BUSY_TEXT}, status=status))
    return HttpResponse(BUSY_TEXT, status=status, content_type="text/plain; charset=utf-8")


def retry_after(refusal: LockNotAcquired) -> str:
    """Return the value of the header ``Retry-After``: when the lock is free at the latest if its
    holder has died, but from 1 to 60 seconds."""
    shortest, longest = RETRY_AFTER_SECONDS
    if refusal.expires_in is None:
        return str(shortest)
    return _whole_seconds(min(max(refusal.expires_in, shortest), longest))


def _whole_seconds(seconds: Any) -> str:
    return str(math.ceil(seconds))


def _request(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the request among the arguments of a view, which can be a method."""
    for each in (*args, *kwargs.values()):
        if isinstance(each, HttpRequest) or _is_rest_request(each):
            return each
    raise TypeError(
        "locks.guard() decorates views, but this call has no request. Use locks.lock(...) as the "
        "decorator of other functions."
    )


def _is_rest_request(value: object) -> bool:
    # If the project has not imported Django REST framework, no request is one of its requests.
    module = sys.modules.get("rest_framework.request")
    return module is not None and isinstance(value, module.Request)


def _last_to_commit() -> str | None:
    """Return the database whose transaction around the view is committed last, or None.

    Django begins the transactions of ``ATOMIC_REQUESTS`` from the last database to the first, so
    it commits the last one at the end.
    """
    aliases = [
        alias
        for alias, settings in connections.settings.items()
        if settings.get("ATOMIC_REQUESTS") and transactions.is_open(alias)
    ]
    return aliases[-1] if aliases else None


@contextmanager
def _response_first(lock: "Mutex") -> Iterator[None]:
    """Return the response of a view that has done its work, if Redis fails at the release.

    The renewer releases the lock later. A lock that was lost is an error, because another request
    may have run at the same time.
    """
    try:
        yield
    except LockError:
        raise
    except RedisError as error:
        _log_release_error(lock, error)


def _release_when_closed(response: Any, held: ExitStack, lock: "Mutex") -> None:
    """Release the lock when the server closes a streaming response.

    A server does so at the end of the stream, when the client disconnects, or if it never reads
    the stream. Its thread can be another than that of the view, which holds the lock: then the
    lock is released in the background. No server can close a response that never reaches it,
    because another part of the site has failed, or because the client of an ASGI server has left
    while the view ran. Then the lock is released when the response is dropped.
    """
    # A bound method would be a reference cycle. Then a response that is dropped would keep the
    # lock until the next garbage collection.
    close = vars(response).get("close") or partial(type(response).close, proxy(response))
    when_dropped = lock.release_when_dropped(response)

    def close_and_release() -> None:
        try:
            close()
        finally:
            try:
                held.close()
            except LockLost as error:  # the response is already sent
                _log_release_error(lock, error)
            except LockNotOwnedError:  # this thread is not the holder
                when_dropped()
            except RedisError as error:
                _log_release_error(lock, error)
            finally:
                when_dropped.detach()

    response.close = close_and_release


def _streaming_error(view: object) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"The async view {view!r} returned a streaming response, which runs after the view, so "
        "its guard cannot hold the lock until the stream ends. Make the view synchronous, or use "
        "'async with locks.lock(...)' in the generator of the stream."
    )


def _log_release_error(lock: "Mutex", error: Exception) -> None:
    logger.warning(
        "Lock not released after response: name=%r error=%s", *(lock.name, error_text(error))
    )
