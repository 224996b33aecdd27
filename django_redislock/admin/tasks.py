"""The revocation of the Celery tasks of holders."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import NamedTuple

from ..identity import MAX_FIELD_CHARACTERS, complete_id
from ..lock_state import is_queued
from ..snapshots import Holding
from .holders import ShownHolder

INSPECT_TIMEOUT_SECONDS = 1.0  # for the replies of the workers to a revocation


def can_be_revoked(holding: Holding) -> bool:
    """Return whether Celery is installed, and the holder is a task whose whole id is recorded."""
    is_task = bool(holding.timeout and complete_id(holding.holder.task_id))
    return is_task and find_spec("celery") is not None


def revoke_fields(holder: ShownHolder, holding: Holding) -> dict[str, str]:
    """Return what a form sends to revoke the task of a holder. Empty if there is none."""
    if not can_be_revoked(holding):
        return {}
    return {"seen": json.dumps([holder]), "task": shown_task(holding)}


def shown_task(holding: Holding) -> str:
    """Return the task of a holder for a form: its id, its name, and whether it is queued."""
    return json.dumps([holding.holder.task_id, holding.holder.task_name, is_queued(holding)])


class ForeignTaskError(Exception):
    """A worker knows a task under another name than the record of the holder. Anybody who can
    write to Redis can put the id of any task into such a record."""


class Revocation(NamedTuple):
    """The result of a revocation."""

    workers: int  # that replied
    ended: bool  # whether a worker that runs the task got the request to end its process


def revoke(task_id: str, task_name: str, *, terminate: bool) -> Revocation:
    """Tell all workers to discard a task. With `terminate`, also tell those that know the task
    under its name to end the pool process that runs it.

    The type of an error depends on the broker.

    Raises:
        ForeignTaskError: A worker knows the task under another name. Nothing was sent.
    """
    from celery import current_app  # an optional dependency

    known = current_app.control.inspect(timeout=INSPECT_TIMEOUT_SECONDS).query_task(task_id) or {}
    names = {
        worker: str(tasks[task_id][1]["name"])
        for worker, tasks in known.items()
        if task_id in tasks
    }
    for name in names.values():
        if name[:MAX_FIELD_CHARACTERS] != task_name:
            raise ForeignTaskError(name)
    replies = current_app.control.revoke(task_id, reply=True, timeout=INSPECT_TIMEOUT_SECONDS)
    if names and terminate:
        current_app.control.revoke(task_id, destination=[*names], terminate=True)
    return Revocation(len(replies or ()), ended=bool(names and terminate))
