"""The Celery tasks of holders: links to their results in django-celery-results, and revocation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple

from django.apps import apps
from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import reverse

from ..identity import MAX_FIELD_CHARACTERS, complete_id
from ..lock_state import is_queued
from ..snapshots import Holding

APP = "django_celery_results"

INSPECT_TIMEOUT_SECONDS = 1.0  # for the replies of the workers to a revocation


def result_links(
    site: AdminSite, request: HttpRequest, task_ids: Iterable[str | None]
) -> dict[str, str]:
    """Return the address of the page of each task that has a result, in one query: none if the
    app is not installed, its model is not in this admin site, or the user may not view it."""
    # The sender of a task chooses its id, and not every database accepts every text.
    ids = {each for each in map(complete_id, task_ids) if each and each.isprintable()}
    model = apps.get_model(APP, "TaskResult") if apps.is_installed(APP) else None
    if not ids or model is None or not site.is_registered(model):
        return {}
    model_admin = site.get_model_admin(model)
    if not model_admin.has_view_permission(request):
        return {}
    page = f"admin:{APP}_{model_admin.opts.model_name}_change"
    found = model_admin.get_queryset(request).filter(task_id__in=ids)
    return {
        task_id: reverse(page, args=[key], current_app=site.name)
        for task_id, key in found.values_list("task_id", "pk")
    }


def can_be_revoked(task_id: str | None) -> bool:
    """Return whether Celery is installed, and the holder is a task whose whole id is recorded."""
    return bool(complete_id(task_id)) and find_spec("celery") is not None


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
