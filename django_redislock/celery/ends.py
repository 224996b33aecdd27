"""A task that ends without having run gives its place in the queue back.

Revoked, expired, failed before its body began, or with a retry that can't be sent: whichever
process sees it says so.
"""

import logging
from typing import Any

from celery.signals import task_failure, task_postrun, task_revoked
from celery.states import RETRY
from redis.exceptions import RedisError

from django_redislock.text import error_text, printable

from .call import Call
from .message import headers_of, place_in
from .retries import BEGUN, FORESEEN, comes_again, recall
from .single import Single, single_of

logger = logging.getLogger("django_redislock")


@task_revoked.connect
def revoked(sender: Any, request: Any, **_: Any) -> None:
    leave_place(sender, request.id, request.args, request.kwargs, headers_of(request))


@task_failure.connect
def failed(sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
    request = sender.request
    # Celery tells of a time limit without the request.
    headers = headers_of(request) if request.id == task_id else {}
    leave_place(sender, task_id, args, kwargs, headers)


@task_postrun.connect
def ended(
    sender: Any, task_id: str, args: Any, kwargs: Any, retval: Any, state: str, **_: Any
) -> None:
    if state == RETRY:
        return
    # Its class did not call it, or Celery could not.
    never_began = not recall(sender, BEGUN) and comes_again(sender, retval) is None
    if never_began or recall(sender, FORESEEN):  # or the retry could not be sent
        leave_place(sender, task_id, args, kwargs, headers_of(sender.request))


def leave_place(task: Any, task_id: str, args: Any, kwargs: Any, headers: Any) -> None:
    """Leave what a task's message holds, if it is one that holds anything."""
    single = single_of(task)
    if single is None or not (single.options.how.place or single.options.holds_on_retry):
        return
    try:
        call = single.call(task, task_id, args, kwargs)
        for name in _names(single, call, headers):
            single.place(single.lock(name), call).release()
    except Exception as error:
        logger.error(
            "Queue lock not released: task=%s[%s] error=%s",
            *(task.name, printable(task_id), error_text(error)),
            exc_info=not isinstance(error, RedisError),
        )


def _names(single: Single, call: Call, headers: Any) -> set[str]:
    """Of all that the message may hold."""
    how = single.options.how
    taken = place_in(headers) if how.place and isinstance(headers, dict) else None
    if taken and not (how.apart and single.options.holds_on_retry):
        return {taken}
    name = single.name_of(call)
    return {name, taken or single.place_name(name)}
