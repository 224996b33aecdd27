"""One call of a single-instance function, and what Celery knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from celery._state import get_current_task

from django_redislock.text import printable

from .message import AGAIN, EXPECTED, headers_of, id_of

if TYPE_CHECKING:
    from celery import Task

    from django_redislock.lock_types import BaseLock

_held: ContextVar[tuple[tuple[str, BaseLock], ...]] = ContextVar(
    "django_redislock_held", default=()
)

_messages: ContextVar[tuple[tuple[str, str | None], ...]] = ContextVar(
    "django_redislock_messages", default=()
)
"""Those under way here: the task's name, and the message's id."""


@dataclass(frozen=True, slots=True)
class Call:
    """Who was called, by what task, with what."""

    function: Callable[..., Any]
    """The function as its users see it, decorated."""

    task: Task[..., Any] | None
    """The task whose body this is; None where a function is called as such."""

    args: tuple[Any, ...]
    """The positional arguments, with the task itself first under ``bind=True``."""

    kwargs: dict[str, Any]
    """The keyword arguments."""

    task_id: str | None = None

    request: Any = None
    """What Celery knows of the message that the task runs for; None unless it runs for one."""

    @classmethod
    def under_way(
        cls,
        function: Callable[..., Any],
        task: Task[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Self:
        """The call that runs now."""
        request = _request_of(task) if task is not None else None
        return cls(function, task, args, kwargs, id_of(request), request)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of the message that the task runs for."""
        return headers_of(self.request)

    @property
    def is_redelivered(self) -> bool:
        """Whether the broker gave the message to a worker before."""
        info = getattr(self.request, "delivery_info", None) or {}
        return bool(info.get("redelivered"))

    @property
    def has_begun(self) -> bool:
        """Whether an earlier execution of the message may have begun: the broker gave it to a
        worker before, which acknowledges it late, or it was sent again after it had begun."""
        # Else what comes again was only fetched: a worker that ends gives back what waits in it.
        late = getattr(self.task, "acks_late", False)
        return bool((late and self.is_redelivered) or self.headers.get(AGAIN))

    @property
    def is_fresh_retry(self) -> bool:
        """Whether it is what an execution, which may run yet, has sent in its own stead."""
        retries = getattr(self.request, "retries", 0)
        return bool(retries) and not (self.is_redelivered or self.headers.get(AGAIN))

    @property
    def is_expected(self) -> bool:
        """Whether others count on the result of the message that the task runs for."""
        followers = ("chord", "group", "chain", "callbacks", "errbacks")
        told = self.headers.get(EXPECTED)  # as Celery itself does not tell of all of them
        return bool(told) or any(getattr(self.request, each, None) for each in followers)

    def came_by(self, message: Any) -> bool:
        """Whether the message that the task runs for has the arguments of that one. The function
        may see others, where something between makes them of these."""
        args, kwargs = self.request.args or (), self.request.kwargs or {}
        return (tuple(args), dict(kwargs)) == (tuple(message.args), dict(message.kwargs))

    @property
    def sent_args(self) -> tuple[Any, ...]:
        """The positional arguments that were sent, without the task."""
        bound = self.task is not None and any(each is self.task for each in self.args[:1])
        return self.args[1:] if bound else self.args

    @property
    def sender(self) -> Any:
        return self.function if self.task is None else self.task

    @property
    def name(self) -> str:
        """The task's name, or the function's."""
        if self.task is not None and self.task.name:
            return self.task.name
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def __str__(self) -> str:
        # Whoever sends a task can choose its id.
        return f"{self.name}[{printable(self.task_id)}]" if self.task_id else self.name


def _request_of(task: Task[..., Any]) -> Any:
    request: Any = task.request
    # Celery lends it to a call that the body makes of its own task, too. An eager one has its own.
    is_lent = not request.is_eager and (task.name, id_of(request)) in _messages.get()
    return None if is_lent else request


def running_task(body: Callable[..., Any]) -> Task[..., Any] | None:
    """Return the task that runs now, if `body` is its body."""
    task: Task[..., Any] | None = get_current_task()
    if task is None:
        return None
    # autoretry_for puts a function of its own into `run`.
    runs = (task.run, getattr(task, "_orig_run", None))
    return task if any(layer is body for run in runs for layer in layers(run)) else None


def layers(function: Any) -> Iterator[Any]:
    """The function, and what it wraps."""
    while function is not None:
        function = getattr(function, "__func__", function)
        yield function
        function = getattr(function, "__wrapped__", None)


def current_lock() -> BaseLock | None:
    """Return the lock of the innermost single-instance function that runs in this thread, greenlet
    or asyncio task.

    A long task can check `lost`, and can store `fence_token` together with its data.

    Returns:
        The lock, or None outside a single-instance function.
    """
    held = _held.get()
    return held[-1][1] if held else None


def runs_under(alias: str, name: str) -> bool:
    """Whether this call is made from inside a function that runs under that lock."""
    return any(lock.name == name for held_by, lock in _held.get() if held_by == alias)


@contextmanager
def under_way(call: Call) -> Iterator[None]:
    """Let what is called meanwhile not be taken for the message that `call` is for."""
    before = _messages.set((*_messages.get(), (call.name, call.task_id)))
    try:
        yield
    finally:
        _messages.reset(before)


@contextmanager
def held(alias: str, lock: BaseLock) -> Iterator[None]:
    """Make `lock` the current one for a while."""
    before = _held.set((*_held.get(), (alias, lock)))
    try:
        yield
    finally:
        _held.reset(before)
