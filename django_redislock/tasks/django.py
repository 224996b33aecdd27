"""`django.tasks` as a task framework: its tasks with any backend, and a backend with queue locks.

The id of a task is known only after its backend has enqueued it. Until then a temporary queue lock
shows that the task is being sent. Then the queue lock of that id takes it over. A worker can start
the task before that, and waits for it.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from importlib import import_module
from itertools import takewhile
from secrets import token_hex
from threading import Thread
from typing import Any

from asgiref.sync import sync_to_async
from django.core.checks import Error, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.identity import complete_id, running_task
from django_redislock.lock_types import QueueLock
from django_redislock.snapshots import Holding
from django_redislock.text import age, error_text, printable

from .conflict import SIMULATED, Conflict, holders_of
from .decorator import definitions, wrap
from .execution import Execution
from .options import Options
from .single import Single, TaskCall, marked
from .skipped import result_was_skipped
from .transactions import TRANSACTION_SECONDS, on_end

logger = logging.getLogger("django_redislock")

PACKAGES: list[Any] = []
"""Django's framework (since Django 6.0), and its backport, which some backends are made with."""

for name in ("django.tasks", "django_tasks"):
    with suppress(ImportError):  # not installed, or an early version of the backport
        import_module(f"{name}.base")
        import_module(f"{name}.exceptions")
        import_module(f"{name}.signals")
        PACKAGES.append(import_module(name))

TASK_CLASSES = tuple(package.base.Task for package in PACKAGES)

NO_SUCH_RESULT = tuple(package.exceptions.TaskResultDoesNotExist for package in PACKAGES)

NO_RESULT = NotImplementedError, *NO_SUCH_RESULT

MAX_RUNS = 1000
"""The limit of `runs`, because a backend may not report an end. It is Python's recursion limit."""

SKIPPED = "redislock_skipped"
"""The key in the return value of a skipped task. Its value is the reason."""


def was_skipped(result: Any) -> bool:
    """Return whether a task was skipped."""
    if result.status != "SUCCESSFUL":
        return False
    return isinstance(result.return_value, dict) and SKIPPED in result.return_value


@dataclass(eq=False, slots=True)
class Run:
    """A task that a backend runs now."""

    result: Any
    """The `TaskResult`."""

    has_begun: bool = False
    """Whether the function was called. A call that it makes of itself is an ordinary call."""


runs: ContextVar[tuple[Run, ...]] = ContextVar("django_redislock_runs", default=())
"""The tasks that are run, the innermost last. The immediate backend nests them."""


def set_runs(found: Iterable[Run]) -> None:
    """Note which tasks are run, and that the locks of the innermost belong to it."""
    items = tuple(found)[-MAX_RUNS:]
    runs.set(items)
    task = None
    if items:
        result = items[-1].result
        task = result.task.module_path, result.id
    running_task.set(task)


def begin_run(task_result: Any, **_: Any) -> None:
    """Note that a backend runs a task."""
    set_runs((*runs.get(), Run(task_result)))


def end_run(task_result: Any, **_: Any) -> None:
    """Note that a task has ended, and what began inside it."""
    set_runs(takewhile(lambda run: run.result.id != task_result.id, runs.get()))
    task = task_result.task
    single = queued_single(task)
    # Perhaps it failed before its function was called.
    if single and task_result.status == "FAILED":
        args, kwargs = task_result.args, task_result.kwargs
        single.release_queue_locks(call_of(single, task, args, kwargs, str(task_result.id)))


def queued_single(task: Any) -> Single | None:
    """Return how a task runs as a single instance, if it takes a queue lock when it is sent."""
    single = marked(task.func)
    return single if single and single.options.locking.when_sent else None


for package in PACKAGES:
    package.signals.task_started.connect(begin_run)
    package.signals.task_finished.connect(end_run)
    result_was_skipped.register(package.base.TaskResult, was_skipped)


being_sent: ContextVar[str] = ContextVar("django_redislock_being_sent", default="")
"""The token of the temporary queue lock of a task that is enqueued here, and may run at once."""

SENDING_SECONDS = 10
"""The lease of the queue lock until the wrapped backend has enqueued the task."""

UNCOMMITTED = "uncommitted"
"""In the metadata of a queue lock: whether the task was enqueued in a transaction, so that other
processes may not see it yet."""

REPLICATION_SECONDS = 1.0
"""How long a task that was enqueued may be missing in a replica of the database."""

POLL_SECONDS = 0.02


def call_of(
    single: Single, task: Any, args: Any, kwargs: Any, task_id: str | None = None
) -> TaskCall:
    """Return the call of a task that is enqueued with these arguments."""
    added = (None,) if task.takes_context else ()
    name = task.module_path
    return TaskCall(
        *(single, (*added, *args), kwargs, name, task_id, len(added)), task=_of_module(task)
    )


def _of_module(task: Any) -> Any:
    """Return the task that a receiver of signals knows. A backend makes a copy of it."""
    try:
        return import_string(task.module_path)
    except ImportError:  # the immediate backend runs any task
        return task


def holders_with_ids(single: Single, name: str) -> tuple[Holding, ...]:
    """Return the holders of a lock, as soon as the ids of all tasks that are sent are known."""
    until = clock.now() + SENDING_SECONDS
    while True:
        holders = holders_of(single.manager.get(name))
        if not any(each.metadata.get("sending") for each in holders) or clock.now() > until:
            return holders
        time.sleep(POLL_SECONDS)


class DjangoTaskExecution(Execution):
    """The execution of a task by a backend."""

    def skip(self, conflict: Conflict) -> dict[str, str] | None:
        """Skip the task, and return the record of that, which becomes its return value."""
        super().skip(conflict)
        return {SKIPPED: str(conflict.error)} if self.call.task_name else None  # a direct call

    def _prepare_queue_lock(self) -> None:
        """Wait until the sender of the task knows its id. Without an id, use any queue lock.

        The call is then direct, or the backend does not send the signal `task_started`.
        """
        if self.call.other_queue_token:  # it runs inside enqueue()
            return
        holders = holders_with_ids(self.single, self.queue_lock_name)
        queued = [each for each in holders if each.metadata.get("queued")]
        if queued and not self.call.task_id:
            self.call.other_queue_token = queued[0].token


def is_task(target: Any) -> bool:
    """Return whether `target` is a task."""
    return issubclass(type(target), TASK_CLASSES)


def decorate(options: Options, task: Any) -> Any:
    """Return the task with another function."""
    check_options(options)
    backend = task.get_backend()
    if options.locking.when_sent and not isinstance(backend, QueueLocks):
        raise ImproperlyConfigured(
            f"single_instance with mode={options.mode!r} locks when the task is enqueued. For"
            f" that, the BACKEND of TASKS[{task.backend!r}] must be"
            " 'django_redislock.tasks.SingleInstanceBackend', around"
            f" {type(backend).__module__}.{type(backend).__qualname__}"
        )
    single = Single(options, task.func, "django", int(task.takes_context))
    return replace(task, func=wrap(single))


def execution(
    single: Single, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> DjangoTaskExecution | None:
    """Return the execution of a call that a backend makes for the task that it runs."""
    found = runs.get()
    run = found[-1] if found else None
    call = TaskCall(single, args, kwargs, added_args=single.added_args, task=single.decorated)
    if run is None or run.has_begun or marked(run.result.task.func) is not single:
        return DjangoTaskExecution(call) if single.framework == "django" else None
    check_options(single.options)
    run.has_begun, task = True, run.result.task
    call.task, call.task_name = _of_module(task), task.module_path
    call.task_id, call.added_args = str(run.result.id), int(task.takes_context)
    if single.options.locking.when_sent:
        call.other_queue_token = being_sent.get()
    return DjangoTaskExecution(call)


def check_options(options: Options) -> None:
    """Check that a backend of `django.tasks` can do what the options say.

    Raises:
        ImproperlyConfigured: It cannot.
    """
    if options.policy.needs_messages:
        wanted = f"on_conflict={options.on_conflict!r}"
    elif options.locking.separate:
        wanted = f"mode={options.mode!r}"
    elif options.hold_on_retry:
        wanted = "hold_on_retry=True"
    else:
        return
    raise ImproperlyConfigured(
        f"single_instance with {wanted} does not work with django.tasks, which cannot send a task"
        " again or revoke it. Use on_conflict='skip', 'raise' or 'wait', or use Celery."
    )


@register
def check_tasks(**_: Any) -> list[Error]:
    """E004: A task has options that its framework cannot follow.

    ``@task`` above `single_instance` cannot refuse them.
    """
    errors = []
    for single in list(definitions):  # the next lines can create more tasks
        function = single.decorated
        module = sys.modules.get(function.__module__)
        kind = type(getattr(module, function.__name__, None))  # isinstance() makes a Celery task
        if issubclass(kind, TASK_CLASSES):
            try:
                check_options(single.options)
            except ImproperlyConfigured as error:
                name = f"{function.__module__}.{function.__qualname__}"
                errors.append(Error(f"{name}: {error}", id="redislock.E004"))
    return errors


def SingleInstanceBackend(alias: str, params: dict[str, Any]) -> Any:
    """Return the backend that ``OPTIONS["BACKEND"]`` names, with queue locks.

    It is an instance of a subclass of that backend, because workers check its class. The backend
    gets the other ``OPTIONS``.

    Args:
        alias: The alias in ``TASKS``.
        params: Its settings.

    Raises:
        django.core.exceptions.ImproperlyConfigured: ``OPTIONS["BACKEND"]`` is missing or wrong.
    """
    options = dict(params.get("OPTIONS", {}))
    path = options.pop("BACKEND", None)
    try:
        backend = _with_queue_locks(path)
    except (ImportError, AttributeError, TypeError) as error:
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]['OPTIONS']['BACKEND'] must be the path of the backend that"
            f" SingleInstanceBackend wraps, not {path!r}: {error}"
        ) from error
    return backend(alias, {**params, "OPTIONS": options})


@lru_cache
def _with_queue_locks(path: str) -> Any:
    backend = import_string(path)
    return type(backend.__name__, (QueueLocks, backend), {"__module__": backend.__module__})


class QueueLocks:
    """The part that is added to a backend."""

    def validate_task(self, task: Any) -> None:
        """Validate a task. Options that cannot work are refused when ``@task`` is applied."""
        if single := marked(task.func):
            check_options(single.options)
        super().validate_task(task)  # type: ignore[misc]  # a mixin

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task, or return the result of the task that is queued or runs."""
        enqueue = partial(super().enqueue, task, args, kwargs)  # type: ignore[misc]  # a mixin
        single = queued_single(task)
        if single is None:
            return enqueue()
        call = call_of(single, task, args, kwargs)
        name, token = single.name_of(call), f"queued-{token_hex(16)}"
        sending = QueueLock(single.lock(name, call), token, (call.name, None), sending=True)
        if conflict := self._conflict(sending, call):
            return single.options.policy.when_sent(Duplicate(self, task, enqueue), conflict)
        before, is_queued = being_sent.set(token), False
        try:
            result = enqueue()
            is_queued = not result.is_finished  # the immediate backend has run it
        finally:
            being_sent.reset(before)
            if not is_queued:
                with suppress(RedisError):  # it expires
                    sending.release()
        if is_queued:
            get_result = partial(self.get_result, result.id)  # type: ignore[attr-defined]
            call = replace(call, task_id=str(result.id))
            _keep(sending, call, task.run_after, get_result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Async version of `enqueue()`."""
        if queued_single(task) is None:
            return await super().aenqueue(task, args, kwargs)  # type: ignore[misc]  # a mixin
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def _conflict(self, sending: QueueLock, call: TaskCall) -> Conflict | None:
        """Take the temporary queue lock of a task, or return the conflict with its holder."""
        name = sending.lock.name
        conflict = Conflict(call, name)
        while not sending.acquire(SENDING_SECONDS):
            holders_with_ids(call.single, name)
            if not conflict.look():  # it was released in the meantime
                continue
            # Or it was deleted before it ran.
            ended = next((each for each in conflict.queue_locks if self._has_ended(each)), None)
            if ended is None:
                return conflict
            if sending.take_over(ended.token, SENDING_SECONDS):
                logger.info(
                    "Queue lock taken over from a task that has ended: name=%r task=%s by=%s",
                    *(name, printable(ended.holder.task_id), call),
                )
                break
        return None

    def _has_ended(self, queue_lock: Holding) -> bool:
        task_id = complete_id(queue_lock.holder.task_id)
        try:
            return bool(self.get_result(task_id).is_finished)  # type: ignore[attr-defined]
        except NO_SUCH_RESULT:
            return (
                age(queue_lock) >= REPLICATION_SECONDS
                and not is_uncommitted(queue_lock)
                and not queue_lock.metadata.get(SIMULATED)
            )
        except Exception:  # it is unreachable, or stores no results
            return False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A task that is not enqueued, because another one holds the queue lock."""

    backend: Any
    task: Any

    enqueue: Callable[[], Any]
    """Enqueues it without a queue lock."""

    def skip(self, conflict: Conflict) -> Any:
        """Return the result of the task that has the queue lock. Only an instance of the same task
        has one for this call. Otherwise enqueue the task, which meets the lock when it starts."""
        task_id = conflict.error.task_id
        if task_id is None or conflict.is_with_another_task:
            return self.enqueue()
        conflict.skip()
        try:
            return self.backend.get_result(task_id)
        except NO_RESULT:  # the backend stores none, or its transaction is not committed
            framework = PACKAGES[0]
            unknown = "enqueued_at", "started_at", "finished_at", "last_attempted_at"
            return framework.TaskResult(
                task=self.task,
                id=task_id,
                status=framework.TaskResultStatus.READY,
                args=list(conflict.call.sent_args),
                kwargs=conflict.call.kwargs,
                backend=self.backend.alias,
                errors=[],
                worker_ids=[],
                **dict.fromkeys(unknown),
            )


def _keep(
    sending: QueueLock, call: TaskCall, run_after: datetime | None, get_result: Callable[[], Any]
) -> None:
    """Pass the queue lock on to the id of the task, until it is due."""
    queue_lock = call.single.queue_lock(sending.lock, call)
    seconds = call.single.options.max_queue_seconds
    if run_after:
        seconds += max(0.0, (run_after - timezone.now()).total_seconds())
    lease = seconds
    if transaction.get_connection().in_atomic_block:  # a rollback can make the task disappear
        lease = TRANSACTION_SECONDS
        queue_lock.metadata[UNCOMMITTED] = True
        on_end(partial(_transaction_ended, queue_lock, seconds, get_result))
    try:
        queue_lock.take_over(sending.token, lease)
    except RedisError as error:  # the task is enqueued
        logger.warning(
            "Queue lock not kept: task=%s name=%r error=%s",
            *(call.name, queue_lock.lock.name, error_text(error)),
        )


def _transaction_ended(
    queue_lock: QueueLock, seconds: float, get_result: Callable[[], Any], committed: bool
) -> None:
    if committed:
        queue_lock.set_lease(seconds)
        return
    with suppress(RuntimeError):  # the interpreter shuts down, or the system has no thread left
        Thread(target=_release_if_unknown, args=(queue_lock, get_result), daemon=True).start()


def _release_if_unknown(queue_lock: QueueLock, get_result: Callable[[], Any]) -> None:
    """Release the queue lock of a task that a rollback has deleted.

    A backend outside the database has enqueued it nevertheless.
    """
    with suppress(Exception):  # it is unreachable, and the lease expires soon
        try:
            get_result()
        except NO_SUCH_RESULT:
            queue_lock.release()
    connections.close_all()


def is_uncommitted(queue_lock: Holding) -> bool:
    """Return whether the transaction that enqueued the task may still be open.

    After its commit the lease is longer.
    """
    lease = (queue_lock.expires_at - queue_lock.acquired_at).total_seconds()
    return bool(queue_lock.metadata.get(UNCOMMITTED)) and lease <= TRANSACTION_SECONDS + 1
