"""One call of a single-instance function."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_redislock.text import printable

if TYPE_CHECKING:
    from django_redislock.lock_types import BaseLock

    from .single import Single

_held: ContextVar[tuple[tuple[str, BaseLock], ...]] = ContextVar(
    "django_redislock_held", default=()
)


@dataclass(eq=False, slots=True)
class Call:
    """A call of a single-instance function."""

    single: Single

    args: tuple[Any, ...]
    """The positional arguments, also those that the task framework adds."""

    kwargs: dict[str, Any]

    task_name: str | None = None
    """None for a call outside a task."""

    task_id: str | None = None

    added_args: int = 0
    """The number of positional arguments that the task framework puts first."""

    @property
    def sent_args(self) -> tuple[Any, ...]:
        """The positional arguments that the caller or sender gave."""
        return self.args[self.added_args :]

    @property
    def sender(self) -> Any:
        """The sender of `task_skipped`."""
        return self.single.decorated

    @property
    def name(self) -> str:
        """The task's name, or the module and qualified name of the function."""
        if self.task_name:
            return self.task_name
        function = self.single.function
        return f"{function.__module__}.{function.__qualname__}"

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


class Held:
    """Makes `lock` the current lock in a ``with`` block."""

    def __init__(self, alias: str, lock: BaseLock) -> None:
        self._held = alias, lock

    def __enter__(self) -> None:
        self._before = _held.set((*_held.get(), self._held))

    def __exit__(self, *error: object) -> None:
        _held.reset(self._before)
