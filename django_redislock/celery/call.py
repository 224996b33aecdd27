"""One call of a single-instance function, and the delivery of the message that it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_redislock.text import printable

from .message import NO_MESSAGE, Message

if TYPE_CHECKING:
    from celery import Task
    from celery.result import AsyncResult

    from django_redislock.lock_types import BaseLock

_held: ContextVar[tuple[tuple[str, BaseLock], ...]] = ContextVar(
    "django_redislock_held", default=()
)


@dataclass(eq=False, slots=True)
class Delivery:
    """A message that Celery executes now, and what is known about its execution.

    It exists from Celery's `task_prerun` to its `task_postrun`. A header of the message can forge
    an attribute of `task.request`, but not this.
    """

    task: Task[..., Any]
    message: Message

    has_started: bool = False
    """Whether the decorated function was called, if only to find that it must not run."""

    is_running: bool = False

    resent_for_seconds: float = 0.0
    """The lease of the queue lock of the message that the execution sent in its own place."""

    earlier_result: AsyncResult[Any] | None = None
    """The result of an earlier execution of the same message, if it has ended."""


_deliveries: ContextVar[tuple[Delivery, ...]] = ContextVar(
    "django_redislock_deliveries", default=()
)
"""Those under way in this thread or greenlet, the innermost last."""


def begin_delivery(task: Task[..., Any]) -> Delivery:
    delivery = Delivery(task, Message.of(task.request))
    _deliveries.set((*_deliveries.get(), delivery))
    return delivery


def end_delivery(task: Task[..., Any]) -> Delivery | None:
    """End the innermost delivery of a task, and those inside it that Celery did not end."""
    deliveries = _deliveries.get()
    for index in range(len(deliveries) - 1, -1, -1):
        if deliveries[index].task is task:
            _deliveries.set(deliveries[:index])
            return deliveries[index]
    return None


def delivery_to(task: Task[..., Any]) -> Delivery | None:
    """Return the delivery that a call of the task's function is for.

    A call that the function makes of its own task is for none.
    """
    deliveries = _deliveries.get()
    if not deliveries or deliveries[-1].task is not task or deliveries[-1].is_running:
        return None
    return deliveries[-1]


def delivery_of(task_id: str) -> Delivery | None:
    """Return the delivery under way here that has a task id."""
    deliveries = reversed(_deliveries.get())
    return next((each for each in deliveries if each.message.task_id == task_id), None)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a single-instance function."""

    function: Callable[..., Any]
    """The function as its users see it, decorated."""

    task: Task[..., Any] | None
    """The task that the function is the body of. None for a plain function."""

    args: tuple[Any, ...]
    """The positional arguments, with the task itself first with ``bind=True``."""

    kwargs: dict[str, Any]

    task_id: str | None = None

    delivery: Delivery | None = None
    """The delivery that the call is for. None for a direct call."""

    message: Message = NO_MESSAGE

    @classmethod
    def now(
        cls,
        function: Callable[..., Any],
        task: Task[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        """Return the call that is made now."""
        delivery = None if task is None else delivery_to(task)
        if delivery is None:
            return cls(function, task, args, kwargs)
        message = delivery.message
        return cls(function, task, args, kwargs, message.task_id, delivery, message)

    @property
    def may_have_run(self) -> bool:
        """Whether an earlier execution of the message may have begun.

        A redelivered message that is acknowledged early was only fetched by another worker.
        """
        message = self.message
        late = message.is_redelivered and getattr(self.task, "acks_late", False)
        return bool(late or message.is_resent)

    @property
    def is_fresh_retry(self) -> bool:
        """Whether an execution, which may still run, has sent the message in its own place."""
        message = self.message
        return bool(message.retries) and not (message.is_redelivered or message.is_resent)

    @property
    def sent_args(self) -> tuple[Any, ...]:
        """The positional arguments that were sent, without the task."""
        is_bound = self.task is not None and self.args and self.args[0] is self.task
        return self.args[1:] if is_bound else self.args

    @property
    def sender(self) -> Any:
        return self.function if self.task is None else self.task

    @property
    def name(self) -> str:
        """The task's name, or the module and qualified name of the function."""
        if self.task is not None and self.task.name:
            return self.task.name
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def __str__(self) -> str:
        # A sender can choose the id.
        return f"{self.name}[{printable(self.task_id)}]" if self.task_id else self.name


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
    """Return whether this call is made inside a function that runs under a lock."""
    held = _held.get()
    return bool(held) and any(lock.name == name for its_alias, lock in held if its_alias == alias)


@contextmanager
def held(alias: str, lock: BaseLock) -> Iterator[None]:
    """Make `lock` the current lock in the block."""
    before = _held.set((*_held.get(), (alias, lock)))
    try:
        yield
    finally:
        _held.reset(before)
