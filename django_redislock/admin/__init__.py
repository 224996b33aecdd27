"""The active locks in Django's admin: list them, show one, release some.

The rows come from Redis, through the lock manager; the database is asked only
for users, permissions and the log of admin actions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, reduce, wraps
from itertools import product, starmap
from operator import or_
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.core.paginator import Paginator
from django.db import DatabaseError, InterfaceError, connections, router, transaction
from django.db.models import Q
from django.forms import Media, Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from redis.exceptions import RedisError

from .. import sentences, validators
from ..advice import join_sentences, quorum_text
from ..lock_state import is_queued, state_of_holding
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import check_name
from ..snapshots import Holding, Waiter
from ..text import error_text, printable, task_text
from . import columns, dashboard, holders, lock_page
from .addresses import URL_PREFIX, page_address, unquote_name
from .changelist import FILTERS, LockChangeList, LockPaginator, checked
from .holders import HolderCheck, ShownHolder, left_out_texts, names_of
from .queryset import LockQuerySet
from .queue_entries import NOT_REMOVED, REMOVED, REMOVING, QueueEntry
from .reading import UNREADABLE, aliases_of, read_locks, shown_aliases
from .tasks import ForeignTaskError, can_be_revoked, revoke, shown_task
from .themes import theme

logger = logging.getLogger("django_redislock")

LOG_ERRORS = (DatabaseError, InterfaceError, ValueError)
"""Errors of a log table that takes no entry. PostgreSQL's driver raises `ValueError` for a NUL."""

MAX_QUERY_CHARACTERS = 8_000
"""The length of the query of an address. A page repeats the query in each of its links."""


def with_unavailable_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def wrapper(self: ActiveLockAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if len(request.META.get("QUERY_STRING", "")) > MAX_QUERY_CHARACTERS:
            raise BadRequest("The address is too long.")
        try:
            return view(self, request, *args, **kwargs)
        except UNREADABLE as error:
            alias = request.GET.get("using")
            if alias and alias not in settings.CACHES:
                raise Http404 from None
            alias = alias or str(getattr(settings, "REDISLOCK_CACHE", "default"))
            return self.unavailable(request, alias, error)

    return wrapper


@admin.register(ActiveLock)
class ActiveLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = (*columns.COLUMNS, columns.ALIAS)
    sortable_by = list_display  # type: ignore[assignment]
    action_checkbox = staticmethod(columns.CHECKBOX)  # type: ignore[assignment]
    list_filter = FILTERS
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("name",)
    search_help_text = gettext_lazy(
        "Part of a name, or a pattern in which * is any text and ? any one character."
    )
    paginator = LockPaginator
    actions = ("release_selected",)
    list_max = 2_000
    """How many locks of each cache alias the list reads, beginning with the first to expire."""

    release_max = 500
    """The maximum number of holders that one confirmation releases."""

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

    def get_queryset(self, request: HttpRequest) -> LockQuerySet:  # type: ignore[override]
        """Return the locks that the user may see. A subclass can narrow it by `where()`."""
        every = LockQuerySet(lambda: read_locks(request, self.list_max).rows)
        if type(self).has_view_permission is admin.ModelAdmin.has_view_permission:
            return every
        return every.where(lambda lock: self.has_view_permission(request, lock))

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        return queryset, False  # only locks that match the search were read

    def _visible(self, request: HttpRequest) -> LockQuerySet:
        return checked(self, self.get_queryset(request))

    def _may_release(self, request: HttpRequest) -> Callable[[ActiveLock], bool]:
        """Return the test whether the user may see and release a lock."""
        may_release = partial(self.has_release_permission, request)
        return self._visible(request).where(may_release).matches

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LockChangeList]:
        return LockChangeList

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns. Only a list with several cache aliases names them."""
        if len(shown_aliases(request, self._visible(request))) > 1:
            return self.list_display
        return columns.COLUMNS

    @with_unavailable_page
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            self._require_release(request)
        title = capfirst(self.opts.verbose_name_plural)
        context = {"title": title, "redislock_theme": theme(), **(extra_context or {})}
        return super().changelist_view(request, context)

    # One lock

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> ActiveLock | None:
        """Return the lock, even if it is free, or None if `get_queryset()` leaves it out."""
        lock = ActiveLock.of(_valid_name(object_id), _manager_of(request).alias, None)
        return lock if self._visible(request).matches(lock) else None

    @with_unavailable_page
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        name, manager = _valid_name(unquote_name(object_id)), _manager_of(request)
        matches = self._visible(request).matches
        details, *others = lock_page.find_lock(request, manager, name, matches)
        row = ActiveLock.of(name, details.alias, details.info)
        if not matches(row):
            raise PermissionDenied
        failed = [(each.name, each.error) for each in aliases_of(request) if each.error]
        failures = [sentences.failure_text(*each) for each in failed]
        if not (details.info or details.events):
            text = _("“%(name)s” is not locked now.")
            if failures and "using" not in request.GET:
                text = _("“%(name)s” is not locked on the cache aliases that can be read.")
            self._warn(request, text % {"name": row})
            return HttpResponseRedirect(self._list_url())
        if details.alias != manager.alias:  # an alias that cannot be read may have the lock, too
            self._warn(request, *failures)
        waits = lock_page.waits(details, matches)
        details = lock_page.add_shares(row, details, others)
        may_release = self._may_release(request)(row)
        context = {
            **lock_page.context(request, self.admin_site, details, row, may_release),
            **waits,
            "using": row.elsewhere,
            "title": str(row),
            "original": row,
            # It can be read once, by whichever place of the links is drawn first.
            "history_url": iter([self._address("history", name, using=row.elsewhere)]),
        }
        return self._page(request, "detail", **context | (extra_context or {}))

    @with_unavailable_page
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Show the entries of a lock in the log of admin actions. Leave out the cache aliases on
        which the user may not see the lock."""
        name = _valid_name(unquote_name(object_id))
        entries = _log_model().objects.filter(content_type__app_label=self.opts.app_label)
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
        manager, visible = _manager_of(request), self._visible(request)
        context = dashboard.context(request, self.admin_site, manager, visible)
        return self._page(request, "dashboard", title=_("Lock dashboard"), **context)

    # Release

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

    @admin.action(
        permissions=["release"],
        description=gettext_lazy("Release selected %(verbose_name_plural)s"),
    )
    def release_selected(self, request: HttpRequest, queryset: LockQuerySet) -> HttpResponse:
        """Ask for confirmation; only `release_view` releases."""
        return self._ask(request, ShownHolder.parse(*request.POST.getlist(ACTION_CHECKBOX_NAME)))

    @with_unavailable_page
    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then release (POST with `confirmed`) the holders that a page showed."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._list_url())
        if "all" in request.POST:
            try:
                matching = self.get_changelist_instance(request).queryset
            except IncorrectLookupParameters:
                return HttpResponseRedirect(self._list_url())
            rows = filter(self._may_release(request), matching)
            shown = [each for row in rows for each in holders.shown_holders(row)]
            failures = read_locks(request, self.list_max).failures
            return self._ask(request, shown, [sentences.failure_text(*each) for each in failures])
        shown = ShownHolder.parse(request.POST.get("seen", ""))
        if "confirmed" not in request.POST:
            return self._ask(request, shown)
        if len(shown) > self.release_max:
            raise BadRequest(f"At most {self.release_max} holders are released at a time")
        return self._release(request, shown)

    def _require_release(self, request: HttpRequest) -> None:
        if not self.has_release_permission(request):
            raise PermissionDenied

    def _ask(
        self, request: HttpRequest, shown: Sequence[ShownHolder], notes: Sequence[str] = ()
    ) -> HttpResponse:
        """Show the holders to release, and the changes since the page was opened."""
        check = holders.check_holders(shown[: self.release_max], self._may_release(request))
        if check.failures and not (check.held or check.changed):
            return self.unavailable(request, *check.failures[0])
        if not check.held:
            self._warn(request, *notes, _("Nothing to release."))
            return self._back(request, check)
        notes = [*notes, *left_out_texts(check)]
        states = list(dict.fromkeys(state_of_holding(holding) for _shown, holding in check.held))
        return self._page(
            request,
            "release_confirmation",
            title=ngettext("Release lock", "Release locks", len(check.rows)),
            held=check.rows,
            states=states,
            is_running=any(state.code not in ("cooldown", "queued") for state in states),
            several_aliases=len(locks.everywhere()) > 1,
            changes=check.changed,
            queues=sentences.queue_texts(check.waiters),
            notes=[*notes, quorum_text()] if check.has_quorum else notes,
            release_max=self.release_max,
            reason_max=validators.MAX_REASON_CHARACTERS,
            more=max(len(shown) - self.release_max, 0),
            seen=json.dumps([each for each, _holding in check.held]),
        )

    def _release(self, request: HttpRequest, shown: Sequence[ShownHolder]) -> HttpResponse:
        reason = request.POST.get("reason", "").strip()[: validators.MAX_REASON_CHARACTERS] or None
        check = holders.check_holders(shown, self._may_release(request))
        released: list[ShownHolder] = []
        for number, (holder, holding) in enumerate(check.held):
            rest = [each for each, _holding in check.held[number:]]
            user, alias = request.user.get_username(), holder.manager.alias
            fields = (holder.name, alias, user, holding.fence_token)
            try:
                text = sentences.log_text(holder.using, holding, sentences.REQUESTED)
                entry = self._log(request, holder.name, text)
            except LOG_ERRORS as error:
                logger.exception(
                    "Lock not force-released in the admin, because the log of admin actions cannot"
                    " be written: name=%r using=%r user=%r fence_token=%d",
                    *fields,
                )
                self.message_user(
                    request, sentences.unlogged_text(names_of(rest), error), messages.ERROR
                )
                break
            logger.warning(
                "Force-releasing a lock in the admin: name=%r using=%r user=%r fence_token=%d",
                *fields,
            )
            try:
                found = holder.manager.force_release(
                    holder.name, holding.stored_token, by=request.user, reason=reason
                )
            except RedisError as error:
                self._warn(request, sentences.failure_text(alias, error, is_release=True))
                check.unconfirmed += rest
                break
            event = sentences.RELEASED if found else sentences.NOT_RELEASED
            self._complete(entry, sentences.log_text(holder.using, holding, event))
            if found:
                released.append(holder)
            else:
                check.changed.append((holder, None))
        if released or not check.unconfirmed:
            level = messages.SUCCESS if released else messages.WARNING
            self.message_user(request, sentences.released_text(names_of(released)), level)
        if check.unconfirmed:
            self._warn(request, sentences.unconfirmed_text(names_of(check.unconfirmed)))
        if released and check.has_quorum:
            self._warn(request, quorum_text())
        return self._back(request, check)

    def _log(self, request: HttpRequest, name: str, text: str) -> Any:
        """Write an entry to the log of admin actions, in a transaction of its own or, if somebody
        has opened one already, a savepoint."""
        with transaction.atomic(using=router.db_for_write(_log_model())):
            return self.log_change(request, ActiveLock(name=name), text)

    def _complete(self, entry: Any, text: str) -> None:
        """Write to the entry what was done. Without that, it still says what was requested."""
        if entry is None:  # a subclass may write no entries
            return
        try:
            with transaction.atomic(using=router.db_for_write(_log_model())):
                entry.change_message = text
                entry.save(update_fields=["change_message"])
        except LOG_ERRORS:
            logger.exception("Admin log entry not completed: name=%r", entry.object_id)

    # Revocation

    @with_unavailable_page
    def revoke_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then revoke (POST with `confirmed`) the task of a holder."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._list_url())
        asked = ShownHolder.parse(request.POST.get("seen", ""))[:1]
        check = holders.check_holders(asked, self._may_release(request))
        if check.failures:
            return self.unavailable(request, *check.failures[0])
        if not check.held:
            self._warn(request, _("Nothing to revoke."))
            return self._back(request, check)
        [(holder, holding)] = check.held
        if not can_be_revoked(holding.holder.task_id):
            raise BadRequest("The holder has no task that can be revoked")
        address = self._address("change", holder.name, using=holder.using)
        task = shown_task(holding)
        if request.POST.get("task") != task:
            self._warn(request, _("Not revoked: the task of the holder has changed."))
            return HttpResponseRedirect(address)
        if "confirmed" in request.POST:
            self._revoke(request, holder, holding)
            return HttpResponseRedirect(address)
        return self._page(
            request,
            "revoke_confirmation",
            title=_("Revoke task"),
            row=check.rows[0],
            terminate=not is_queued(holding),
            seen=json.dumps([holder]),
            task=task,
            lock_url=address,
        )

    def _revoke(self, request: HttpRequest, holder: ShownHolder, holding: Holding) -> None:
        task_id, task_name = holding.holder.task_id or "", holding.holder.task_name or ""
        task, terminate = printable(f"{task_name}[{task_id}]"), not is_queued(holding)
        try:
            text = sentences.log_text(holder.using, holding, sentences.REVOKING)
            entry = self._log(request, holder.name, text)
            logger.warning(
                "Revoking a task in the admin: task=%s name=%r using=%r user=%r fence_token=%d"
                " terminate=%s",
                *(task, holder.name, holder.manager.alias, request.user.get_username()),
                *(holding.fence_token, terminate),
            )
            workers, ended = revoke(task_id, task_name, terminate=terminate)
            result = f"; workers that replied: {workers}"
            self._complete(
                entry, sentences.log_text(holder.using, holding, sentences.REVOKED, result)
            )
        except ForeignTaskError as error:
            known_as = printable(str(error))
            logger.warning(
                "Task not revoked in the admin, a worker knows it under another name: task=%s"
                " known_as=%s name=%r",
                *(task, known_as, holder.name),
            )
            self._complete(entry, sentences.log_text(holder.using, holding, sentences.NOT_REVOKED))
            level = messages.ERROR
            text = _(
                "Not revoked: a worker knows the task %(task)s as %(known)s, so the record of the "
                "holder in Redis is wrong."
            ) % {"task": printable(task_id), "known": known_as}
        except Exception as error:  # the brokers' libraries have no common class of errors
            logger.exception("Task not revoked in the admin: task=%s", task)
            level = messages.ERROR
            text = _("The task was not revoked: %(error)s") % {"error": error_text(error)}
        else:
            is_done = workers and (ended or not terminate)
            level = messages.SUCCESS if is_done else messages.WARNING
            text = ngettext(
                "The revocation of task %(task)s was sent: %(count)d worker replied.",
                "The revocation of task %(task)s was sent: %(count)d workers replied.",
                workers,
            ) % {"task": printable(task_id), "count": workers}
            if terminate and not ended:
                not_ended = _("No worker that replied runs the task, so no process was ended.")
                text = join_sentences([text, not_ended])
        self.message_user(request, text, level)

    # Removal from a queue

    @with_unavailable_page
    def remove_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then remove (POST with `confirmed`) a task from the queue of a lock."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._list_url())
        entry = QueueEntry.parse(request.POST)
        row = ActiveLock.of(entry.name, entry.manager.alias, entry.manager.get(entry.name))
        if not self._may_release(request)(row):
            raise PermissionDenied
        address = self._address("change", entry.name, using=entry.using)
        waiter = entry.waiter()
        if waiter is None:
            self._warn(request, _("Not removed: the task does not wait any more."))
            return HttpResponseRedirect(address)
        if "confirmed" in request.POST:
            self._remove(request, entry, waiter)
            return HttpResponseRedirect(address)
        return self._page(
            request,
            "remove_confirmation",
            title=_("Remove task"),
            entry=entry,
            waiter=waiter,
            lock_url=address,
        )

    def _remove(self, request: HttpRequest, entry: QueueEntry, waiter: Waiter) -> None:
        task = task_text(waiter)
        try:
            logged = self._log(request, entry.name, entry.log_text(waiter, REMOVING))
        except LOG_ERRORS as error:
            logger.exception(
                "Task not removed in the admin, because the log of admin actions cannot be"
                " written: task=%s name=%r",
                *(task, entry.name),
            )
            text = _("Not removed, because the admin log cannot be written (%(error)s).")
            self.message_user(request, text % {"error": type(error).__name__}, messages.ERROR)
            return
        logger.warning(
            "Removing a task from a queue in the admin: task=%s name=%r using=%r user=%r",
            *(task, entry.name, entry.manager.alias, request.user.get_username()),
        )
        if not entry.remove():
            self._complete(logged, entry.log_text(waiter, NOT_REMOVED))
            self._warn(request, _("Not removed: the task does not wait any more."))
            return
        self._complete(logged, entry.log_text(waiter, REMOVED))
        text = _("Removed the task %(task)s from the queue.") % {"task": task}
        self.message_user(request, text, messages.SUCCESS)

    # Pages

    def _back(self, request: HttpRequest, check: HolderCheck) -> HttpResponse:
        """Return to the list, with a message about each holder that was left out."""
        self._warn(request, *left_out_texts(check))
        if check.changed:
            self._warn(request, sentences.skipped_text(each.name for each, _now in check.changed))
        return HttpResponseRedirect(self._list_url(request.GET.urlencode()))

    def _warn(self, request: HttpRequest, *texts: str) -> None:
        for text in texts:
            self.message_user(request, text, messages.WARNING)

    def unavailable(self, request: HttpRequest, alias: str, error: BaseException) -> HttpResponse:
        """Return the page that says that the locks cannot be read now, and why."""
        others: list[str] = []
        with suppress(ImproperlyConfigured):
            failed = {each.name for each in aliases_of(request) if each.error}
            shown = shown_aliases(request, self._visible(request))
            others = [each for each in shown if each not in failed]
        return self._page(
            request,
            "unavailable",
            status=503,
            title=_("Locks are not available"),
            error=sentences.failure_text(alias, error),
            others=[each for each in others if each != alias],
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
            **context,
        }
        template_name = f"{columns.TEMPLATES}/{template}.html"
        return TemplateResponse(request, template_name, context, status=status)

    def _address(self, page: str, name: str = "", **query: str) -> str:
        return page_address(page, self.admin_site.name, name, **query)

    def _list_url(self, query: str = "") -> str:
        """Return the address of the list with its filters, its order and its page."""
        address = self._address("changelist")
        return f"{address}?{query}" if query else address


def _log_model() -> Any:
    return apps.get_model("admin.LogEntry")  # not before the apps are loaded


def _valid_name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:  # not every database accepts a text that cannot be a name
        raise Http404 from error


def _manager_of(request: HttpRequest) -> LockManager:
    alias = request.GET.get("using")
    if alias and alias not in settings.CACHES:
        raise Http404
    return locks.using(alias or None)
