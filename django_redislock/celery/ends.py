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

from .retries import FORESEEN, is_remembered
from .single import single_of

logger = logging.getLogger("django_redislock")


@task_revoked.connect
def revoked(sender: Any, request: Any, **_: Any) -> None:
    leave_place(sender, request.id, request.args, request.kwargs)


@task_failure.connect
def failed(sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
    leave_place(sender, task_id, args, kwargs)


@task_postrun.connect
def ended(sender: Any, task_id: str, args: Any, kwargs: Any, state: str, **_: Any) -> None:
    if state != RETRY and is_remembered(sender, FORESEEN):  # the retry could not be sent
        leave_place(sender, task_id, args, kwargs)


def leave_place(task: Any, task_id: str, args: Any, kwargs: Any) -> None:
    """Leave what a task's message holds, if it is one that holds anything."""
    single = single_of(task)
    if single is None or not (single.options.how.place or single.options.holds_on_retry):
        return
    try:
        call = single.call(task, task_id, args, kwargs)
        name = single.name_of(call)
        for each in {name, single.place_name(name)}:
            single.place(single.lock(each), call).leave()
    except Exception as error:
        logger.error(
            "The place of %s[%s] in the queue could not be given back: it stays until its lease "
            "is over: %s",
            *(task.name, printable(task_id), error_text(error)),
            exc_info=not isinstance(error, RedisError),
        )
