"""The active locks in Django's admin: list them, show one, release some.

The rows come from Redis, through the lock manager; the database is asked only
for users, permissions and the log of admin actions.
"""

from __future__ import annotations

from functools import reduce
from itertools import product, starmap
from operator import or_
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import sentences
from ..models import ActiveLock
from ..names import check_name
from . import columns, dashboard, lock_page
from .addresses import URL_PREFIX, unquote_name
from .base import log_model, with_unavailable_page
from .changelist import FILTERS, LockChangeList, LockPaginator
from .queue_entries import NOT_REMOVED, REMOVED, REMOVING
from .reading import known_aliases, manager_of
from .release import ReleasePages
from .task_pages import TaskPages
from .themes import theme


@admin.register(ActiveLock)
class ActiveLockAdmin(ReleasePages, TaskPages):
    """The pages of the active locks. A subclass can narrow what a user sees and may release."""

    list_display = columns.COLUMNS
    sortable_by = list_display  # type: ignore[assignment]
    action_checkbox = staticmethod(columns.CHECKBOX)  # type: ignore[assignment]
    list_filter = FILTERS
    show_facets = admin.ShowFacets.NEVER
    preserve_filters = False  # the pages make their own links to the list
    search_fields = ("name",)
    search_help_text = gettext_lazy(
        "Part of a name, or a pattern in which * is any text and ? any one character."
    )
    paginator = LockPaginator
    actions = ("release_selected",)

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        return queryset, False  # only locks that match the search were read

    def get_urls(self) -> list[URLPattern]:
        pages = {
            "release": self.admin_site.admin_view(self.release_view),
            "revoke": self.admin_site.admin_view(self.revoke_view),
            "remove": self.admin_site.admin_view(self.remove_view),
            "dashboard": self.admin_site.admin_view(self.dashboard_view),
        }
        # Each log entry must be durable before its lock is released, so ATOMIC_REQUESTS must not
        # put the whole view into one transaction, whichever database has the log.
        for name, alias in product(("release", "revoke", "remove"), connections):
            pages[name] = transaction.non_atomic_requests(using=alias)(pages[name])
        own = [path(f"{page}/", view, name=f"{URL_PREFIX}{page}") for page, view in pages.items()]
        return [*own, *super().get_urls()]

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LockChangeList]:
        return LockChangeList

    @with_unavailable_page
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            self._require_release(request)
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            "redislock_theme": theme(),
            "using": request.GET.get("using", ""),
            "aliases": known_aliases(),
            "alias": manager_of(request).alias,
        }
        return super().changelist_view(request, context | (extra_context or {}))

    # One lock

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> ActiveLock | None:
        """Return the lock, even if it is free, or None if `get_queryset()` leaves it out."""
        lock = ActiveLock.of(_valid_name(object_id), manager_of(request).alias, None)
        return lock if self._visible(request).matches(lock) else None

    @with_unavailable_page
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        name, manager = _valid_name(unquote_name(object_id)), manager_of(request)
        using = request.GET.get("using", "")
        matches = self._visible(request).matches
        details = lock_page.read_lock(manager, name)
        row = ActiveLock.of(name, manager.alias, details.info)
        if not matches(row):
            raise PermissionDenied
        if not (details.info or details.events):
            text = _("“%(name)s” is not locked on “%(alias)s” now.")
            self._warn(request, text % {"name": row, "alias": manager.alias})
            return HttpResponseRedirect(self._address("changelist", using=using))
        may_release = self._may_release(request)(row)
        context = {
            **lock_page.context(details, row, may_release),
            **lock_page.waits(manager, details, matches),
            "title": str(row),
            "original": row,
            # It can be read once, by whichever place of the links is drawn first.
            "history_url": iter([self._address("history", name, using=using)]),
        }
        return self._page(request, "detail", **context | (extra_context or {}))

    @with_unavailable_page
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Show the entries of a lock in the log of admin actions. Leave out the cache aliases on
        which the user may not see the lock."""
        name = _valid_name(unquote_name(object_id))
        entries = log_model().objects.filter(content_type__app_label=self.opts.app_label)
        entries = entries.filter(object_id=name).select_related("user").order_by("action_time")
        matches = self._visible(request).matches
        shown = [each for each in settings.CACHES if matches(ActiveLock.of(name, each, None))]
        if len(shown) < len(settings.CACHES):
            events = *sentences.LOG_EVENTS, REMOVING, REMOVED, NOT_REMOVED
            heads = starmap(sentences.log_head, product(events, shown))
            conditions = (Q(change_message__startswith=head) for head in heads)
            entries = entries.filter(reduce(or_, conditions, Q(pk=None)))
        pages = Paginator(entries, 100)
        page = pages.get_page(request.GET.get(PAGE_VAR))
        context = {
            "action_list": page,
            "page_range": pages.get_elided_page_range(page.number),
            "pagination_required": pages.num_pages > 1,
        }
        return super().history_view(request, quote(name), context | (extra_context or {}))

    # The dashboard

    @with_unavailable_page
    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """Show the last `minutes` of all locks of one cache alias (`using`)."""
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        manager, visible = manager_of(request), self._visible(request)
        context = dashboard.context(request, manager, visible)
        return self._page(request, "dashboard", title=_("Lock dashboard"), **context)


def _valid_name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:  # not every database accepts a text that cannot be a name
        raise Http404 from error
