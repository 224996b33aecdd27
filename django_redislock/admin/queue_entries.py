"""Tasks that wait in the queue of a lock without a process, and their removal from it."""

from __future__ import annotations

from typing import NamedTuple

from django.core.exceptions import BadRequest
from django.http import QueryDict

from .. import validators
from ..lock_types.stored_task import Outbox
from ..manager import LockManager
from ..names import check_name
from ..sentences import log_head
from ..snapshots import Waiter
from ..text import holder_and_task_text, short_duration

MAX_WAITERS = 100  # of one lock, that a page shows

REMOVING = "Removal of a task from the queue requested"
REMOVED = "Task removed from the queue"
NOT_REMOVED = "Task not removed, because it did not wait any more"


class QueueEntry(NamedTuple):
    """A task in the queue of a lock, as a page showed it."""

    name: str  # of the lock
    token: str  # which follows from the id of the task, so it is not secret

    @classmethod
    def parse(cls, form: QueryDict) -> QueueEntry:
        """Read a form. Raise `BadRequest` if it is invalid."""
        try:
            name = check_name(form.get("name"))
            token = validators.reported_token("token", form.get("token"))
        except (ValueError, TypeError) as error:
            raise BadRequest("The form has no name of a lock and no token") from error
        return cls(name, token)

    def waiter(self, manager: LockManager) -> Waiter | None:
        """Return the task, or None if it does not wait any more."""
        waiters = manager.queue(self.name, MAX_WAITERS)
        return next((each for each in waiters if each.stored_token == self.token), None)

    def remove(self, manager: LockManager) -> bool:
        """Remove the task, and return whether it was in the queue."""
        return Outbox(manager.alias).cancel(self.token)


def log_text(using: str, waiter: Waiter, event: str) -> str:
    """Return the text of an entry in the log of admin actions, which is always in English."""
    who = holder_and_task_text(waiter)
    return f"{log_head(event, using)}{who}, for {short_duration(waiter.waited)}."
