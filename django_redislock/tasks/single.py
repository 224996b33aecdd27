"""The definition of a single-instance task or function, and a call of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from inspect import Parameter, unwrap
from typing import Any

from django.core.signing import BadSignature, Signer
from redis.exceptions import RedisError

from django_redislock import validators
from django_redislock.identity import recorded_id
from django_redislock.introspection import is_async, signature_of
from django_redislock.lock_types import BaseLock, Mutex, QueueLock, Semaphore
from django_redislock.manager import locks
from django_redislock.names import Template, check_name, fit_name, short_repr
from django_redislock.snapshots import Holding
from django_redislock.text import error_text, printable

from .key import arguments_text
from .options import Options

logger = logging.getLogger("django_redislock")

MARK = "django_redislock_single_instance"

QUEUE_LOCK_SUFFIX = ":queued"
"""The end of the name of a separate queue lock."""


@dataclass(eq=False, slots=True)
class TaskCall:
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

    task: Any = None
    """The task or function that is called, as its users see it."""

    is_expected: bool = False
    """Whether other tasks or a caller depend on the result."""

    other_queue_token: str = ""
    """The token of its queue lock, if that does not follow from the id of the task."""

    @property
    def queue_token(self) -> str:
        """The token of the queue lock that the task can have, or ""."""
        return self.other_queue_token or (queue_lock_token(self.task_id) if self.task_id else "")

    @property
    def sent_args(self) -> tuple[Any, ...]:
        """The positional arguments that the caller or sender gave."""
        return self.args[self.added_args :]

    @property
    def name(self) -> str:
        """The task's name, or the module and qualified name of the function."""
        function = self.single.function
        return self.task_name or f"{function.__module__}.{function.__qualname__}"

    def __str__(self) -> str:
        # A sender can choose the id.
        task_id = printable(recorded_id(str(self.task_id)))
        return f"{self.name}[{task_id}]" if self.task_id else self.name


class Single:
    """The definition of one task or function.

    Args:
        options: The options.
        function: The function that runs under the lock.
        framework: The name of the framework whose decorator is below `single_instance`, if any.
        added_args: The number of positional arguments that this framework puts first.

    Raises:
        ImproperlyConfigured: An option names an argument that the function does not have.
    """

    decorated: Callable[..., Any]
    """The function as its users see it."""

    def __init__(
        self,
        options: Options,
        function: Callable[..., Any],
        framework: str = "",
        added_args: int = 0,
    ) -> None:
        self.options, self.function = options, function
        self.manager = locks.using(options.using)
        self.framework, self.added_args = framework, added_args
        self.signature, self.is_async = signature_of(function), is_async(function)
        key = options.key
        self._template = Template(key, self.signature, "key") if isinstance(key, str) else None
        self._arguments_text = arguments_text(options.unique_on or (), self.signature)

    def takes(self, keyword: str) -> bool:
        """Return whether the function has a keyword argument."""
        parameters = self.signature.parameters
        takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
        return takes_any or keyword in parameters

    def name_of(self, call: TaskCall) -> str:
        """Return the name of the lock for a call."""
        key = self.options.key
        if callable(key):
            return check_name(key(*call.sent_args, **call.kwargs), "the result of key")
        if self._template:
            return self._template.of_call(call.args, call.kwargs)
        if self.options.unique_on is None:
            return fit_name(call.name)
        text = self._arguments_text(call.args, call.kwargs, call.added_args)
        return fit_name(f"{call.name}:{text}" if text else call.name)

    def limit_for(self, call: TaskCall) -> int | None:
        """Return how many instances can run at the same time. None means a mutex."""
        limit = self.options.limit
        if not callable(limit):
            return limit
        return validators.count("the result of limit", limit(*call.sent_args, **call.kwargs))

    def lock(self, name: str, call: TaskCall, **options: Any) -> Mutex | Semaphore:
        """Return a lock with the limit for a call."""
        limit = self.limit_for(call)
        lock = (
            self.manager.lock(name, **options)
            if limit is None
            else self.manager.semaphore(name, limit, **options)
        )
        lock.on_conflict = self.options.policy.recorded_as
        return lock

    def running_lock(self, name: str, call: TaskCall) -> Mutex | Semaphore:
        """Return the lock that a call holds while it runs. It takes over the call's queue lock."""
        lock = self.lock(name, call, **self.options.of_lock)
        lock.predecessor = call.queue_token
        if call.task_id:
            lock.task = call.task_name, call.task_id
        return lock

    def queue_lock_name(self, name: str) -> str:
        """Return the name of the queue lock that belongs to the lock `name`.

        Raises `ValueError` if `name` could itself be the name of a queue lock. A user
        named ``bob:queued`` could otherwise block the queue lock of the user ``bob``.
        """
        if not self.options.locking.separate:
            return name
        if name.endswith(QUEUE_LOCK_SUFFIX):
            raise ValueError(
                f"Lock name {short_repr(name)} must not end with {QUEUE_LOCK_SUFFIX!r}, which"
                f" mode={self.options.mode!r} reserves for its queue locks"
            )
        return fit_name(name + QUEUE_LOCK_SUFFIX)

    def queue_lock(self, lock: BaseLock, call: TaskCall) -> QueueLock:
        """Return the queue lock of a task, to acquire it."""
        task = call.name, call.task_id
        queue_lock = QueueLock(lock, call.queue_token, task, expected=call.is_expected)
        if self.options.policy.replaces:
            queue_lock.metadata["signature"] = _signer().signature(_signed_text(lock.name, task))
        return queue_lock

    def release_queue_lock(self, name: str, call: TaskCall) -> bool:
        """Release the queue lock of a task, and return whether the task held it."""
        lock, token, task = self.manager.lock(name), call.queue_token, (call.name, call.task_id)
        return bool(token) and QueueLock(lock, token, task).release()

    def release_queue_locks(self, call: TaskCall, taken: str | None = None) -> None:
        """Release what a task that has ended still has.

        Args:
            call: The call of the task.
            taken: The name of the queue lock that it took, if its message says that. The name can
                have changed.
        """
        try:
            if taken:
                self.release_queue_lock(taken, call)
            try:
                name = self.name_of(call)
                names = {name, self.queue_lock_name(name)} - {taken}
            except Exception:
                if not taken:
                    raise
                names = set()  # what it took when it was sent is released
            for each in names:
                self.release_queue_lock(each, call)
        except Exception as error:
            logger.error(
                "Queue lock not released: task=%s error=%s",
                *(call, error_text(error)),
                exc_info=not isinstance(error, RedisError),
            )


def queue_lock_token(task_id: str) -> str:
    """Return the token of a task's queue lock. It depends on the id only."""
    digest = sha256(str(task_id).encode(errors="surrogatepass")).hexdigest()
    return f"queued-{digest[:32]}"


def is_signed(holding: Holding, lock_name: str, task_name: str) -> bool:
    """Return whether this project took that queue lock for a task of that name.

    Somebody else who wrote the record to Redis does not have Django's ``SECRET_KEY``.
    """
    signer = _signer()
    text = _signed_text(lock_name, (task_name, holding.holder.task_id))
    try:
        signer.unsign(f"{text}{signer.sep}{holding.metadata.get('signature')}")
    except (BadSignature, UnicodeError):
        return False
    return True


def _signer() -> Signer:
    return Signer(salt=MARK)


def _signed_text(lock_name: str, task: tuple[str | None, str | None]) -> str:
    return json.dumps([lock_name, *task])


def marked(function: Any) -> Single | None:
    """Return how a decorated function runs as a single instance, also inside other wrappers."""
    return _mark_of(unwrap(function, stop=lambda each: bool(_mark_of(each))))


def _mark_of(function: object) -> Single | None:
    found = getattr(function, MARK, None)
    return found if isinstance(found, Single) else None  # a mock has any attribute
