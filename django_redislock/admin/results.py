"""Links to the results of Celery tasks in the admin of django-celery-results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import reverse

from ..text import printable

APP = "django_celery_results"

LONGEST = 255
"""Characters of an id that has a result."""


def result_links(site: AdminSite, request: HttpRequest, task_ids: Iterable[str]) -> dict[str, str]:
    """Return the address of the page of each task that has a result, in one query.

    None where the app is not installed, its model is not in this admin site,
    or the user may not view it.
    """
    model_admin = _model_admin(site)
    # The sender of a task chooses its id, and not every database accepts every text.
    wanted = {each for each in task_ids if each == printable(each) and len(each) <= LONGEST}
    if not wanted or model_admin is None or not model_admin.has_view_permission(request):
        return {}
    found = model_admin.get_queryset(request).filter(task_id__in=wanted)
    page = f"admin:{APP}_{model_admin.opts.model_name}_change"
    return {
        task_id: reverse(page, args=[key], current_app=site.name)
        for task_id, key in found.values_list("task_id", "pk")
    }


def _model_admin(site: AdminSite) -> Any:
    if not apps.is_installed(APP):
        return None
    model = apps.get_model(APP, "TaskResult")
    return site.get_model_admin(model) if site.is_registered(model) else None
