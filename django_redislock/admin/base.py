"""What all pages of the active locks have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, InterfaceError, router, transaction
from django.forms import Media, Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from .. import sentences
from ..models import ActiveLock
from . import columns
from .addresses import page_address
from .changelist import checked
from .holders import HolderCheck
from .queryset import LockQuerySet
from .reading import UNREADABLE, known_aliases, read_locks
from .themes import theme

logger = logging.getLogger("django_redislock")

LOG_ERRORS = (DatabaseError, InterfaceError, ValueError)
"""Errors of a log table that takes no entry. PostgreSQL's driver raises `ValueError` for a NUL."""

MAX_QUERY_CHARACTERS = 8_000
"""The length of the query of an address. A page repeats the query in each of its links."""


def with_unavailable_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def wrapper(self: LockPages, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if len(request.META.get("QUERY_STRING", "")) > MAX_QUERY_CHARACTERS:
            raise BadRequest("The address is too long.")
        try:
            return view(self, request, *args, **kwargs)
        except UNREADABLE as error:
            default = str(getattr(settings, "REDISLOCK_CACHE", "default"))
            return self.unavailable(request, request.GET.get("using") or default, error)

    return wrapper


class LockPages(admin.ModelAdmin):  # type: ignore[type-arg]
    """The permissions, the log of admin actions, and the parts of a page."""

    list_max = 2_000
    """How many locks the list reads, beginning with the first to expire."""

    # Without Django's scripts: its actions.js knows only the rows that the page began with.
    media = Media(
        css={"all": ["django_redislock/admin.css"]},
        js=[Script("django_redislock/list.js", defer=True)],  # type: ignore[list-item]
    )

    # Permissions

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_release_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may release a lock, or locks in general if `obj` is None.

        The user needs the permission `release_activelock`, and must be allowed to see the lock.
        """
        may = request.user.has_perm("django_redislock.release_activelock")
        return may and self.has_view_permission(request, obj)

    def _require_release(self, request: HttpRequest) -> None:
        if not self.has_release_permission(request):
            raise PermissionDenied

    def get_queryset(self, request: HttpRequest) -> LockQuerySet:  # type: ignore[override]
        """Return the locks that the user may see. A subclass can narrow it by `where()`."""
        every = LockQuerySet(lambda: read_locks(request, self.list_max).rows)
        if type(self).has_view_permission is admin.ModelAdmin.has_view_permission:
            return every
        return every.where(lambda lock: self.has_view_permission(request, lock))

    def _visible(self, request: HttpRequest) -> LockQuerySet:
        return checked(self, self.get_queryset(request))

    def _may_release(self, request: HttpRequest) -> Callable[[ActiveLock], bool]:
        """Return the test whether the user may see and release a lock."""
        may_release = partial(self.has_release_permission, request)
        return self._visible(request).where(may_release).matches

    # The log of admin actions

    def _log(self, request: HttpRequest, name: str, text: str) -> Any:
        """Write an entry to the log of admin actions, in a transaction of its own or, if somebody
        has opened one already, a savepoint."""
        with transaction.atomic(using=router.db_for_write(log_model())):
            return self.log_change(request, ActiveLock(name=name), text)

    def _complete(self, entry: Any, text: str) -> None:
        """Write to the entry what was done. Without that, it still says what was requested."""
        if entry is None:  # a subclass may write no entries
            return
        try:
            with transaction.atomic(using=router.db_for_write(log_model())):
                entry.change_message = text
                entry.save(update_fields=["change_message"])
        except LOG_ERRORS:
            logger.exception("Admin log entry not completed: name=%r", entry.object_id)

    # Parts of a page

    def _back(self, request: HttpRequest, check: HolderCheck) -> HttpResponse:
        """Return to the list, with a message about each holder that was left out."""
        if check.denied:
            self._warn(request, sentences.denied_text(check.denied))
        if check.changed:
            self._warn(request, sentences.skipped_text(each.name for each, _now in check.changed))
        return self._to_list(request)

    def _warn(self, request: HttpRequest, *texts: str) -> None:
        for text in texts:
            self.message_user(request, text, messages.WARNING)

    def unavailable(self, request: HttpRequest, alias: str, error: BaseException) -> HttpResponse:
        """Return the page that says that the locks cannot be read now, and why."""
        aliases: list[str] = []
        with suppress(ImproperlyConfigured):
            aliases = known_aliases()
        return self._page(
            request,
            "unavailable",
            status=503,
            title=_("Locks are not available"),
            error=sentences.failure_text(alias, error),
            alias=alias,
            aliases=aliases,
        )

    def _page(
        self, request: HttpRequest, template: str, status: int = 200, **context: Any
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "has_plain_breadcrumbs": django.VERSION < (6, 1) and theme() == "django",
            "redislock_theme": theme(),
            "using": request.GET.get("using", ""),
            **context,
        }
        template_name = f"{columns.TEMPLATES}/{template}.html"
        return TemplateResponse(request, template_name, context, status=status)

    def _address(self, page: str, name: str = "", **query: str) -> str:
        return page_address(page, self.admin_site.name, name, **query)

    def _to_list(self, request: HttpRequest) -> HttpResponse:
        """Return to the list of this address: its cache alias, filters, order and page."""
        query = request.GET.urlencode()
        address = self._address("changelist")
        return HttpResponseRedirect(f"{address}?{query}" if query else address)


def log_model() -> Any:
    return apps.get_model("admin.LogEntry")  # not before the apps are loaded
