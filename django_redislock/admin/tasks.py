"""The Celery tasks of holders: links to their results in django-celery-results, and revocation."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from django.apps import apps
from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import reverse

from ..identity import complete_id

APP = "django_celery_results"

REPLY_TIMEOUT_SECONDS = 1.0  # for the replies of the workers to a revocation


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


def revoke(task_id: str, *, terminate: bool) -> int:
    """Tell all workers to discard a task, and return how many of them replied. With `terminate`,
    the pool process that runs it is ended, too. The type of an error depends on the broker."""
    from celery import current_app  # an optional dependency

    replies = current_app.control.revoke(
        task_id, terminate=terminate, reply=True, timeout=REPLY_TIMEOUT_SECONDS
    )
    return len(replies or ())
