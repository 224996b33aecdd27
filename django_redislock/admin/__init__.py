"""The active locks in Django's admin: list them, show one, release some.

The rows come from Redis, through the lock manager; the database is asked only
for users, permissions and the log of admin actions.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import django
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ORDER_VAR
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, InterfaceError, connections, router, transaction
from django.forms import Media, Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from ..advice import advice, quorum_text
from ..conf import conf
from ..lock_state import STALE, is_queued, state_of, state_of_holding
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import check_name
from ..snapshots import Holding
from ..text import error_text, printable
from . import columns, dashboard, filters, lock_page, timeline
from .addresses import URL_PREFIX, page_address, unquote_name
from .aliases import aliases_of
from .changelist import LockChangeList, LockPaginator
from .queryset import LockQuerySet, LockTest
from .shown_holders import HolderCheck, ShownHolder, check_holders, shown_holders
from .tasks import can_be_revoked, result_links, revoke
from .wording import (
    LOG_DONE,
    LOG_GONE,
    LOG_REQUESTED,
    LOG_REVOKED,
    alias_away_text,
    away_text,
    change_text,
    denied_text,
    gone_text,
    learnt_text,
    log_text,
    released_text,
    revoked_text,
    unlogged_text,
)

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry

logger = logging.getLogger("django_redislock")

TEMPLATES = "admin/django_redislock/activelock"

LOG_ERRORS = (DatabaseError, InterfaceError, ValueError)
"""Errors of a log table that takes no entry. PostgreSQL's driver raises `ValueError` for a NUL."""

REFRESH_SECONDS = (2, 5, 15)

STYLES = ["django_redislock/admin.css"]

LIST_SCRIPT = Script("django_redislock/list.js", defer=True)

REFRESH = Media(js=[LIST_SCRIPT])  # type: ignore[list-item]  # the stubs know no assets

PAGES = forms.Media(css={"all": ["django_redislock/pages.css"]})

View = Callable[..., HttpResponse]


def plain_when_redis_is_away(view: View) -> View:
    @wraps(view)
    def wrapper(self: ActiveLockAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return view(self, request, *args, **kwargs)
        except (RedisError, ImproperlyConfigured) as error:
            return self.unavailable(request, error)

    return wrapper


@admin.register(ActiveLock)
class ActiveLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = (columns.NAME, *columns.CHOICES)
    action_checkbox = staticmethod(columns.CHECKBOX)  # type: ignore[assignment]
    list_filter = filters.ALL
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("name",)
    search_help_text = gettext_lazy(
        "Part of a name, or a pattern in which * is any text and ? any one character."
    )
    show_full_result_count = False
    paginator = LockPaginator
    actions = ("release_selected",)
    list_max = 5_000
    """The maximum number of locks of each cache alias that a filter or an order reads. The page
    says so if there are more."""

    page_depth = 100_000
    """The maximum number of locks of one cache alias that the pages of an unfiltered list show.
    Redis reads all names before a page, so the number is limited."""

    release_max = 500
    """The maximum number of holders that one confirmation releases."""

    class Media:
        css: ClassVar = {"all": STYLES}

    # Permissions

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_release_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may release a lock, or locks in general if `obj` is None.

        The user needs the permission `release_activelock`, and must be allowed to see the lock.
        """
        may = request.user.has_perm("django_redislock.release_activelock")
        if type(self).has_view_permission is admin.ModelAdmin.has_view_permission:
            return may and self.has_view_permission(request)
        return may and permission_test(self.has_view_permission, request)(obj)

    def get_queryset(self, request: HttpRequest) -> LockQuerySet:  # type: ignore[override]
        """Return the locks that the user may see. A subclass can narrow it by `filter()`,
        `exclude()` and `none()`; lookups can use `name` and `using`, the cache alias."""
        queryset = LockQuerySet(
            partial(aliases_of, request),
            list_max=self.list_max,
            page_depth=self.page_depth,
            page_size=self.list_per_page,
        )
        if type(self).has_view_permission is admin.ModelAdmin.has_view_permission:
            return queryset
        return queryset.restrict(permission_test(self.has_view_permission, request))

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        if not isinstance(queryset, LockQuerySet):
            raise self._wrong_queryset(queryset)
        term = search_term.strip()
        return queryset.search(term) if term else queryset, False

    def _locks(self, request: HttpRequest) -> LockQuerySet:
        queryset = self.get_queryset(request)
        if not isinstance(queryset, LockQuerySet):
            raise self._wrong_queryset(queryset)
        return queryset

    def _wrong_queryset(self, queryset: Any) -> ImproperlyConfigured:
        return ImproperlyConfigured(
            f"{type(self).__name__}.get_queryset() must return super().get_queryset(request),"
            f" narrowed by filter(), exclude() or none(), not {type(queryset).__name__}."
        )

    def _releasable(self, request: HttpRequest) -> LockQuerySet:
        """Return the locks that the user may see and release."""
        test = permission_test(self.has_release_permission, request)
        return self._locks(request).restrict(test)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LockChangeList]:
        return LockChangeList

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns that the user has chosen for the session."""
        names = request.session.get(columns.SESSION_KEY)
        if not isinstance(names, list):
            names = columns.FIRST_SHOWN
        known = columns.CHOICES if len(aliases_of(request)) > 1 else columns.CHOICES[:-1]
        return [columns.NAME, *[each for each in known if each.__name__ in names]]

    @plain_when_redis_is_away
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            self._require_release(request)
        elif columns.PARAMETER in request.GET:
            names, known = request.GET.getlist(columns.PARAMETER), columns.CHOICES
            chosen = [each.__name__ for each in known if each.__name__ in names]
            request.session[columns.SESSION_KEY] = chosen
            rest = request.GET.copy()
            for name in (columns.PARAMETER, ORDER_VAR):  # an order counts the columns by place
                rest.pop(name, None)
            return HttpResponseRedirect(self._list_url(rest))
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            # Django's actions.js knows only the rows that the page began with.
            "media": Media(css={"all": STYLES}) + REFRESH,
            "column_parameter": columns.PARAMETER,
            "column_choices": columns.CHOICES,
            "refresh_choices": REFRESH_SECONDS,
            "may_release": self.has_release_permission(request),
        }
        return super().changelist_view(request, context | (extra_context or {}))

    # One lock

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> ActiveLock | None:
        """Return the lock of that name, even if it is free, because its history outlives it.
        Return None if `get_queryset()` leaves it out."""
        try:
            name = check_name(object_id)
        except ValueError as error:  # not every database accepts a text that cannot be a name
            raise Http404 from error
        lock = ActiveLock.of(name, _manager_of(request).alias, None)
        return lock if self._locks(request).matches(lock) else None

    @plain_when_redis_is_away
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        name, manager = unquote_name(object_id), _manager_of(request)
        away: list[tuple[str, Exception]] = []
        try:
            managers = (manager,) if "using" in request.GET else locks.everywhere()
            details = lock_page.find_lock(managers, name, away)
        except ValueError:  # the address contains an invalid name
            details = lock_page.LockDetails(name, manager.alias)
        row = ActiveLock.of(name, details.alias, details.info)
        if not self._locks(request).matches(row):
            raise PermissionDenied
        if details.is_unknown:
            self._warn(request, [alias_away_text(*each) for each in away])
            self._warn(request, [_("“%(name)s” is not locked now.") % {"name": printable(name)}])
            return HttpResponseRedirect(self._address("changelist"))
        context = self._detail(request, details, row) | (extra_context or {})
        return self._page(request, "detail", **context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        return super().history_view(request, quote(unquote_name(object_id)), extra_context)

    def _detail(
        self, request: HttpRequest, details: lock_page.LockDetails, row: ActiveLock
    ) -> dict[str, Any]:
        self._add_shares(request, row)
        shown = shown_holders(row) if details.info else []
        may_release = self._releasable(request).matches(row)
        cards = []
        for holding, holder in zip(details.holders[: lock_page.HOLDERS], shown, strict=False):
            can_revoke = may_release and holding.timeout and can_be_revoked(holding.holder.task_id)
            cards.append((holding, json.dumps([holder]) if can_revoke else ""))
        return {
            "title": printable(row.name),
            "original": row,
            "change": True,
            # Django before 6.1 draws the object tools inside the content block.
            "tools_in_content": django.VERSION < (6, 1),
            "media": self.media + PAGES,
            "aliases": [each.using for each in (row, *row.shares)],
            "several_aliases": len(locks.everywhere()) > 1,
            "lock": details.info,
            "now": details.now,
            "state": lock_page.state_text(details),
            "verdict": advice(details.info, partial(timeline.clock, now=details.now)),
            "links": result_links(self.admin_site, request, details.task_ids),
            "cards": cards,
            "more_holders": len(details.holders) - len(cards),
            "waiters": details.waiters,
            "waiters_have_metadata": any(each.metadata for each in details.waiters),
            "events": details.events,
            "events_have_metadata": any(each.metadata for each in details.events),
            "chart": lock_page.chart(details),
            "keeps_history": conf.history,
            "history_url": self._address("history", row.name) if self._has_log(row.name) else "",
            "seen": json.dumps(shown) if may_release and shown else "",
        }

    def _add_shares(self, request: HttpRequest, row: ActiveLock) -> None:
        """Add the other servers of a quorum lock, as far as they can be read."""
        token = row.primary.token if row.primary and row.info.kind == "quorum" else None
        for alias in aliases_of(request) if token else ():
            with suppress(RedisError, ImproperlyConfigured):
                is_other = alias.name != row.using and not alias.error
                share = alias.manager.get(row.name) if is_other else None
                if share and any(each.token == token for each in share.holders):
                    row.shares += (ActiveLock.of(row.name, alias.name, share),)

    def _has_log(self, name: str) -> bool:
        """Return whether the log of admin actions has an entry for a lock."""
        # Not before the apps are loaded.
        from django.contrib.admin.models import LogEntry
        from django.contrib.contenttypes.models import ContentType

        content_type = ContentType.objects.get_for_model(self.model)
        return LogEntry.objects.filter(content_type=content_type, object_id=name).exists()

    # The dashboard

    @plain_when_redis_is_away
    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """Show the last `minutes` of all locks of one cache alias (`using`)."""
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        manager = _manager_of(request)
        minutes = dashboard.minutes_of(request.GET.get("minutes"))
        visible = self._locks(request)
        sees_all = not visible.restrictions
        activity = dashboard.read_activity(manager, minutes, None if sees_all else visible)
        busiest = dashboard.busiest(activity.locks.values())
        stale = dashboard.stale_holders(activity)
        contended = dashboard.contended(activity.locks.values())
        troubles = dashboard.troubles(activity)
        listed = troubles[: dashboard.TROUBLES]
        task_ids = {each.holder.task_id for each in listed if each.holder.task_id}
        context: dict[str, Any] = {
            "title": _("Lock dashboard"),
            "media": self.media + PAGES + REFRESH,
            "refresh_choices": REFRESH_SECONDS,
            "minutes": activity.minutes,
            "windows": dashboard.WINDOWS,
            "now": activity.now,
            "aliases": [each.alias for each in locks.everywhere()],
            "alias": manager.alias,
            "using": "" if manager.alias == locks.alias else manager.alias,
            "total": activity.total,
            "read_count": len(activity.infos),
            "waiting": sum(info.waiters for info in activity.infos),
            "stale_locks": sum(state_of(info) is STALE for info in activity.infos),
            # Only some of the locks were read, so more can have waiters or be stale.
            "or_more": "+" if activity.total > len(activity.infos) else "",
            "stale": stale[: dashboard.MAX_STALE_ROWS],
            "stale_count": len(stale),
            "troubles": listed,
            "more_troubles": len(troubles) - len(listed),
            "links": result_links(self.admin_site, request, task_ids),
            "chart": dashboard.chart(activity, busiest),
            "busiest": busiest,
            "less_busy": len(activity.locks) - len(busiest),
            "contended": contended,
            "top_wait": max((lock.longest_wait for lock in contended), default=0),
            # The counts are of all locks, so a user who may not see all locks does not see them.
            "rates": dashboard.rate_chart(activity.rates) if sees_all else None,
            "recent": activity.recent,
            "kept": conf.history,
        }
        return self._page(request, "dashboard", **context)

    def _address(self, page: str, name: str = "", **query: str | int) -> str:
        return page_address(page, self.admin_site.name, name, **query)

    # Release

    def get_urls(self) -> list[URLPattern]:
        pages = {
            "release": self.admin_site.admin_view(self.release_view),
            "revoke": self.admin_site.admin_view(self.revoke_view),
            "dashboard": self.admin_site.admin_view(self.dashboard_view),
        }
        # Each log entry must be durable before its lock is released, so ATOMIC_REQUESTS must not
        # put the whole view into one transaction, whichever database has the log.
        for name, alias in product(("release", "revoke"), connections):
            pages[name] = transaction.non_atomic_requests(using=alias)(pages[name])
        own = [path(f"{page}/", view, name=f"{URL_PREFIX}{page}") for page, view in pages.items()]
        return [*own, *super().get_urls()]

    @admin.action(
        permissions=["release"],
        description=gettext_lazy("Release selected %(verbose_name_plural)s"),
    )
    def release_selected(self, request: HttpRequest, queryset: LockQuerySet) -> HttpResponse:
        """Ask for confirmation; only `release_view` releases."""
        self._require_release(request)
        return self._ask(request, self._seen_in(*request.POST.getlist(ACTION_CHECKBOX_NAME)))

    @plain_when_redis_is_away
    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then release (POST with `confirmed`) the holders that were seen."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._address("changelist"))
        if "all" in request.POST:
            return self._ask_for_all(request)
        seen = self._seen_in(request.POST.get("seen", ""))
        if "confirmed" not in request.POST:
            return self._ask(request, seen)
        if len(seen) > self.release_max:
            raise BadRequest(f"At most {self.release_max} holders are released at a time")
        if "part_of" in request.POST and "only_these" not in request.POST:
            text = _(
                "Nothing was released. Tick the box to confirm that only the listed holders will "
                "be released."
            )
            self._warn(request, [text])
            return HttpResponseRedirect(self._list_url(request.GET))
        return self._release(request, seen)

    def _seen_in(self, *texts: str) -> list[ShownHolder]:
        """Read the holders that a form names. A page of the list has far fewer than this bound."""
        seen, most = ShownHolder.parse(*texts), self.release_max * 10
        if len(seen) > most:
            raise BadRequest(f"A form names at most {most} holders, got {len(seen)}")
        return seen

    def _require_release(self, request: HttpRequest) -> None:
        if not self.has_release_permission(request):
            raise PermissionDenied

    def _ask_for_all(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation to release all locks that match the search and the filters now."""
        queryset: Any = self.get_changelist_instance(request).queryset
        rows = queryset[0 : self.list_max if queryset.is_filtered else self.release_max]
        shown_count = request.POST.get("shown_count", "")
        return self._ask(
            request,
            [holder for row in rows for holder in shown_holders(row)],
            # Each of those that were not asked for has one holder at least.
            more=max(queryset.matching - len(rows), 0),
            notes=queryset.notes if queryset.is_filtered else queryset.unreachable,
            matching=queryset.matching,
            shown_count=int(shown_count)
            if re.fullmatch("[0-9]{1,9}", shown_count)
            else queryset.matching,
        )

    def _ask(
        self,
        request: HttpRequest,
        seen: Sequence[ShownHolder],
        *,
        more: int = 0,
        notes: Sequence[str] = (),
        **context: Any,
    ) -> HttpResponse:
        """Show the holders to release, and the changes since the page was opened. `more` is the
        number of holders that match, too, but are not listed."""
        check = self._check_holders(request, seen)
        if check.away and not (check.held or check.gone):
            raise check.away[0][1]
        held = check.held[: self.release_max]
        notes = [*notes, *(alias_away_text(*each) for each in check.away)]
        notes += [quorum_text()] if check.has_quorum else []
        if not held:
            self._warn(request, notes)
            self._warn(request, [_("Nothing to release.")])
            return self._back(request, check)
        notes += [denied_text(check.denied)] if check.denied else []
        return self._page(
            request,
            "release_confirmation",
            title=_("Release locks"),
            held=self._rows(held),
            states=list(dict.fromkeys(state_of_holding(holding) for _seen, holding in held)),
            several_aliases=len(locks.everywhere()) > 1,
            changes=[change_text(*each) for each in check.gone],
            notes=notes,
            learnt=learnt_text(holding for _seen, holding in held),
            part_of=len(check.held) + more if more or len(check.held) > len(held) else None,
            seen=json.dumps([each for each, _holding in held]),
            **context,
        )

    def _rows(self, held: Sequence[tuple[ShownHolder, Holding]]) -> list[SimpleNamespace]:
        """Return one row for each holder, even on several servers."""
        rows: dict[str, SimpleNamespace] = {}
        for seen, holding in held:
            row = SimpleNamespace(name=seen.name, holding=holding, aliases=[])
            rows.setdefault(holding.token, row).aliases.append(seen.manager.alias)
        return list(rows.values())

    def _release(self, request: HttpRequest, seen: Sequence[ShownHolder]) -> HttpResponse:
        check = self._check_holders(request, seen)
        released: list[tuple[ShownHolder, Holding]] = []
        unlogged: list[tuple[ShownHolder, Exception]] = []
        try:
            for one, holding in check.held:
                try:
                    entry = self._log_request(request, one, holding)
                except LOG_ERRORS as error:
                    unlogged.append((one, error))
                    continue
                if self._release_one(request, one, holding, entry):
                    released.append((one, holding))
                else:
                    check.gone.append((one, None))
        except RedisError as error:
            self.message_user(request, away_text(error), messages.ERROR)
        if unlogged:
            self.message_user(request, unlogged_text(unlogged), messages.ERROR)
        level = messages.SUCCESS if released else messages.WARNING
        self.message_user(request, released_text(released), level)
        if released and check.has_quorum:
            self._warn(request, [quorum_text()])
        return self._back(request, check)

    def _check_holders(self, request: HttpRequest, seen: Sequence[ShownHolder]) -> HolderCheck:
        """Return the state of the holders. Raise `PermissionDenied` if none may be released."""
        check = check_holders(seen, self._releasable(request).matches)
        if check.denied and not (check.held or check.gone or check.away):
            raise PermissionDenied
        return check

    def _log_request(
        self, request: HttpRequest, seen: ShownHolder, holding: Holding
    ) -> LogEntry | None:
        """Write down a release before it happens, in Django's log of admin actions and to the
        logger `django_redislock`. Return the entry.

        Raises one of `LOG_ERRORS` if the entry cannot be written.
        """
        # Not before the apps are loaded.
        from django.contrib.admin.models import LogEntry

        user = request.user.get_username()
        fields = (seen.name, seen.manager.alias, user, holding.fence_token)
        try:
            # A transaction of its own or, if somebody has opened one already, a savepoint.
            with transaction.atomic(using=router.db_for_write(LogEntry)):
                text = log_text(seen, holding, LOG_REQUESTED)
                entry = self.log_change(request, ActiveLock(name=seen.name), text)
        except LOG_ERRORS:
            logger.exception(
                "Lock not force-released in the admin, because the log of admin actions cannot be"
                " written: name=%r using=%r user=%r fence_token=%d",
                *fields,
            )
            raise
        logger.warning(
            "Force-releasing a lock in the admin: name=%r using=%r user=%r fence_token=%d", *fields
        )
        return entry

    def _release_one(
        self, request: HttpRequest, seen: ShownHolder, holding: Holding, entry: LogEntry | None
    ) -> bool:
        """Release the lock for that holder, complete the log entry, and return whether the holder
        still had the lock."""
        released = bool(seen.manager.force_release(seen.name, holding.token, user=request.user))
        if entry is not None:  # a subclass may write no entries
            entry.change_message = log_text(seen, holding, LOG_DONE if released else LOG_GONE)
            try:
                with transaction.atomic(using=router.db_for_write(type(entry), instance=entry)):
                    entry.save(update_fields=["change_message"])
            except LOG_ERRORS:
                # The entry says still that the release was requested.
                logger.exception("Admin log entry not completed: name=%r", seen.name)
        return released

    # Revocation

    @plain_when_redis_is_away
    def revoke_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then revoke (POST with `confirmed`) the task of a holder that was
        seen."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._address("changelist"))
        check = self._check_holders(request, self._seen_in(request.POST.get("seen", ""))[:1])
        for each in check.away:
            raise each[1]
        if not check.held:
            self._warn(request, [_("Nothing to revoke.")])
            return self._back(request, check)
        [(seen, holding)] = check.held
        if not can_be_revoked(holding.holder.task_id):
            raise BadRequest("The holder has no task that can be revoked")
        if "confirmed" in request.POST:
            return self._revoke(request, seen, holding, terminate="terminate" in request.POST)
        return self._page(
            request,
            "revoke_confirmation",
            title=_("Revoke task"),
            row=self._rows(check.held)[0],
            terminate=not is_queued(holding),
            seen=json.dumps([seen]),
            lock_url=self._address("change", seen.name, using=seen.using),
        )

    def _revoke(
        self, request: HttpRequest, seen: ShownHolder, holding: Holding, *, terminate: bool
    ) -> HttpResponse:
        task_id = holding.holder.task_id or ""
        task = printable(f"{holding.holder.task_name}[{task_id}]")
        self.log_change(request, ActiveLock(name=seen.name), log_text(seen, holding, LOG_REVOKED))
        logger.warning(
            "Revoking a task in the admin: task=%s name=%r using=%r user=%r fence_token=%d"
            " terminate=%s",
            *(task, seen.name, seen.manager.alias, request.user.get_username()),
            *(holding.fence_token, terminate),
        )
        try:
            workers = revoke(task_id, terminate=terminate)
        except Exception as error:  # the brokers' libraries have no common class of errors
            logger.exception("Task not revoked in the admin: task=%s", task)
            text = _("The task was not revoked: %(error)s") % {"error": error_text(error)}
            self.message_user(request, text, messages.ERROR)
        else:
            level = messages.SUCCESS if workers else messages.WARNING
            self.message_user(request, revoked_text(printable(task_id), workers), level)
        return HttpResponseRedirect(self._address("change", seen.name, using=seen.using))

    def _back(self, request: HttpRequest, check: HolderCheck) -> HttpResponse:
        """Return to the list, with a message about each holder that was left out."""
        if check.denied:
            self._warn(request, [denied_text(check.denied)])
        self._warn(request, [alias_away_text(*each) for each in check.away])
        if check.gone:
            self._warn(request, [gone_text(check.gone)])
        return HttpResponseRedirect(self._list_url(request.GET))

    def _warn(self, request: HttpRequest, texts: Sequence[str]) -> None:
        for text in texts:
            self.message_user(request, text, messages.WARNING)

    # Pages

    def unavailable(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Return the page that says that the locks cannot be read now, and why."""
        context: dict[str, Any] = {"error": away_text(error)}
        with suppress(ImproperlyConfigured):
            aliases = [each.alias for each in locks.everywhere()]
            if len(aliases) > 1:
                alias = request.GET.get("using") or locks.alias
                away = alias_away_text(alias, error)
                context = {"error": away, "alias": alias, "aliases": aliases}
        title = _("Locks are not available")
        return self._page(request, "unavailable", status=503, title=title, **context)

    def _page(
        self, request: HttpRequest, template: str, status: int = 200, **context: Any
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }
        return TemplateResponse(
            request, f"{TEMPLATES}/{template}.html", {**common, **context}, status=status
        )

    def _list_url(self, query: QueryDict) -> str:
        """Return the address of the list with its filters and its order."""
        address = self._address("changelist")
        return f"{address}?{query.urlencode()}" if query else address


def permission_test(method: Callable[..., bool], request: HttpRequest) -> LockTest:
    """Return the test of a permission method of the admin for one lock.

    If a subclass has written the method without the argument `obj`, it decides for all locks.
    """
    try:
        inspect.signature(method).bind(request, None)
    except TypeError:
        return lambda lock: method(request)
    return lambda lock: method(request, lock)


def _manager_of(request: HttpRequest) -> LockManager:
    alias = request.GET.get("using")
    if alias and alias not in settings.CACHES:
        raise Http404
    return locks.using(alias or None)
