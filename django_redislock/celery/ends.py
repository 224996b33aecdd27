"""The queue lock of a task that ends without running is released.

The task was revoked, has expired, or failed before its function was called. The process that
learns of it releases the queue lock.
"""

from functools import partial
from typing import Any

from celery.signals import task_failure, task_postrun, task_prerun, task_revoked
from celery.states import RETRY

from django_redislock.tasks.single import Single

from .delivery import TaskCall, begin_delivery, call_of, end_delivery, single_of
from .execution import look_back, runs_again_in
from .message import Message


@task_prerun.connect
def begin(sender: Any, **_: Any) -> None:
    if single := single_of(sender):
        look_back(single, begin_delivery(sender))


@task_postrun.connect
def end(sender: Any, retval: Any, state: str, **_: Any) -> None:
    delivery = end_delivery(sender) if single_of(sender) else None
    if delivery is None or delivery.has_started or state == RETRY:
        return
    # The task's class did not call the function, or Celery could not.
    if runs_again_in(delivery, retval) is None:
        release_queue_lock_of(sender, delivery.message)


@task_revoked.connect
def revoked(sender: Any, request: Any, **_: Any) -> None:
    release_queue_lock_of(sender, Message.of(request))


@task_failure.connect
def failed(sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
    message = Message.of(sender.request)
    if message.task_id != task_id:  # Celery reports a hard time limit without its request
        message = Message(task_id, tuple(args or ()), dict(kwargs or {}))
    release_queue_lock_of(sender, message)


def release_queue_lock_of(task: Any, message: Message) -> None:
    """Release what a task's message holds, if it can hold anything."""
    single = single_of(task)
    if single is None or not (single.options.locking.when_sent or single.options.holds_on_retry):
        return
    call = call_of(single, task, message.task_id, message.args, message.kwargs)
    single.release_queue_locks(call, partial(_names, single, call, message))


def _names(single: Single, call: TaskCall, message: Message) -> set[str]:
    """Return the names of all locks that the message can hold."""
    locking = single.options.locking
    taken = message.queue_lock if locking.when_sent else None
    if taken and not (locking.separate and single.options.holds_on_retry):
        return {taken}
    name = single.name_of(call)
    return {name, taken or single.queue_lock_name(name)}
