"""The begin and end of each execution, and of tasks that end without running.

If a task was revoked, has expired, or failed before its function was called, the process that
learns of it releases the queue lock.
"""

from contextlib import suppress
from typing import Any

from celery.app.task import Context
from celery.signals import task_failure, task_postrun, task_prerun, task_revoked
from celery.states import RETRY

from .call import call_of, single_of
from .execution import is_replaceable, runs_again_in
from .message import Message, begin_execution, end_execution


@task_prerun.connect
def begin(sender: Any, **_: Any) -> None:
    if single := single_of(sender):
        message = Message(single, sender, sender.request)
        begin_execution(message)
        # Celery records next that the task has started, and a result backend can forget the rest.
        may_have_ended = message.may_have_run or is_replaceable(message)
        if may_have_ended and sender.track_started and message.task_id:
            result = sender.AsyncResult(message.task_id)
            with suppress(Exception):  # no result backend, or it is unreachable
                message.earlier_result = result if result.ready() else None


@task_postrun.connect
def end(sender: Any, retval: Any, state: str, **_: Any) -> None:
    message = end_execution(sender)
    if message is None or message.has_started or state == RETRY:
        return
    # The task's class did not call the function, or Celery could not.
    if runs_again_in(message, retval) is None:
        release_queue_lock_of(message)


@task_revoked.connect
def revoked(sender: Any, request: Any, **_: Any) -> None:
    release_queue_lock(sender, request)


@task_failure.connect
def failed(sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
    request = sender.request
    if str(request.id) != task_id:  # Celery reports a hard time limit without its request
        request = Context(id=task_id, args=args, kwargs=kwargs)
    release_queue_lock(sender, request)


def release_queue_lock(task: Any, request: Any, headers: dict[str, Any] | None = None) -> None:
    """Release what the message of a request still holds; see `Message` for the arguments."""
    if single := single_of(task):
        release_queue_lock_of(Message(single, task, request, headers))


def release_queue_lock_of(message: Message) -> None:
    """Release what a message still holds, if it can hold anything."""
    single = message.single
    locking = single.options.locking
    if not single.options.may_have_queue_lock:
        return
    call = call_of(single, message.task, message.task_id, message.args, message.kwargs)

    def names() -> set[str]:
        taken = message.queue_lock if locking.when_sent else None
        if taken and not (locking.separate and single.options.holds_on_retry):
            return {taken}
        name = single.name_of(call)
        return {name, taken or single.queue_lock_name(name)}

    single.release_queue_locks(call, names)
