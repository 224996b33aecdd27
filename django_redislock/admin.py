"""The active locks in Django's admin: list them, look at one, release some.

The rows come from Redis, through the lock manager; the database is asked only
for users, permissions and the log of admin actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import django
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from redis.exceptions import RedisError

from .info import Holding, LockInfo
from .manager import locks
from .models import ActiveLock
from .names import check_name
from .text import age, holder_text, printable, short_duration, task_text

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[ActiveLock]
else:
    BaseAdmin = admin.ModelAdmin

TEMPLATES = "admin/django_redislock/activelock"
NAMES_IN_MESSAGE = 5


class LockRows(list[ActiveLock]):
    """What the admin's list asks of a query set, over rows that are there."""

    def filter(self, *, pk__in: Iterable[str]) -> LockRows:
        known = {row.name: row for row in self}
        # What has moved beyond the end of the list since it was drawn is asked for by name.
        rows = (known.get(name) or find_row(name) for name in dict.fromkeys(pk__in))
        return LockRows(row for row in rows if row)

    def _clone(self) -> LockRows:
        return self


class LockChangeList(ChangeList):
    """Django's own list, filled from Redis."""

    has_more = False
    total: int | None = None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.title = str(self.opts.verbose_name_plural).capitalize()

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        # Django asks again for the rows when an action is posted.
        if not hasattr(self, "queryset"):
            self.queryset = self._load(request)
        return self.queryset

    def url_for_result(self, result: Any) -> str:
        return reverse(
            url_name("change"),
            args=(quote_name(result.name),),
            current_app=self.model_admin.admin_site.name,
        )

    def _load(self, request: HttpRequest) -> LockRows:
        most = self.model_admin.list_max  # type: ignore[attr-defined]
        try:
            found = list(islice(locks.active(as_pattern(self.query)), most + 1))
        except ValueError as error:
            messages.error(request, printable(error))
            return LockRows()
        self.has_more = len(found) > most
        self.total = locks.count() if self.has_more and not self.query.strip() else None
        return LockRows(ActiveLock.of(info) for info in sorted(found[:most], key=oldest_first))


@dataclass(frozen=True, slots=True)
class Seen:
    """A holder as a page showed it, by its fencing token: unlike the owner's it is no secret."""

    name: str
    fence_token: int

    @classmethod
    def parse(cls, text: str) -> list[Seen]:
        """Read what `dump` wrote and a browser sent back; `BadRequest` if it is anything else."""
        try:
            return [cls(check_name(name), int(fence)) for name, fence in json.loads(text)]
        except (ValueError, TypeError) as error:
            raise BadRequest("seen is not a list of names and fencing tokens") from error

    @staticmethod
    def dump(seen: Iterable[Seen]) -> str:
        return json.dumps([(one.name, one.fence_token) for one in seen], ensure_ascii=False)

    def holding(self) -> Holding | None:
        """Return what is still held of it; None if it is over, whoever came after."""
        info = locks.get(self.name)
        holders = info.holders if info else ()
        return next((h for h in holders if h.fence_token == self.fence_token), None)


View = Callable[..., HttpResponse]


def plain_when_redis_is_away(view: View) -> View:
    @wraps(view)
    def wrapper(self: ActiveLockAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(self, request, *args, **kwargs)
        except (RedisError, ImproperlyConfigured) as error:
            return self.unavailable(request, error)

    return wrapper


@admin.register(ActiveLock)
class ActiveLockAdmin(BaseAdmin):
    list_display = (
        "shown_name",
        "kind",
        "holder",
        "task",
        "age",
        "time_left",
        "waiters",
        "fencing_token",
    )
    sortable_by = ()
    search_fields = ("name",)
    search_help_text = gettext_lazy(
        "Part of a name, or a pattern in which * is any text and ? any one character."
    )
    show_full_result_count = False
    actions = ("release_selected",)
    list_max = 1000
    """How many locks the list takes from Redis at most; it says so when there are more."""

    class Media:
        css: ClassVar = {"all": ["django_redislock/admin.css"]}

    # Permissions

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Whether the user may release: a permission of its own, and seeing comes before it."""
        may = request.user.has_perm("django_redislock.release_activelock")
        return may and self.has_view_permission(request)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LockChangeList

    @plain_when_redis_is_away
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if "release_selected" in request.POST.getlist("action"):
            self._require_release(request)
        return super().changelist_view(request, extra_context)

    @admin.display(description=gettext_lazy("name"))
    def shown_name(self, lock: ActiveLock) -> str:
        return printable(lock.name)

    @admin.display(description=gettext_lazy("kind"))
    def kind(self, lock: ActiveLock) -> str:
        return printable(lock.info.kind)

    @admin.display(description=gettext_lazy("holder"))
    def holder(self, lock: ActiveLock) -> str | None:
        return of_first(lock.info, holder_text) and with_others(lock.info)

    @admin.display(description=gettext_lazy("task"))
    def task(self, lock: ActiveLock) -> str | None:
        return of_first(lock.info, task_text)

    @admin.display(description=gettext_lazy("age"))
    def age(self, lock: ActiveLock) -> str | None:
        return of_first(lock.info, age_text)

    @admin.display(description=gettext_lazy("time left"))
    def time_left(self, lock: ActiveLock) -> str | None:
        return of_first(lock.info, left_text)

    @admin.display(description=gettext_lazy("waiters"))
    def waiters(self, lock: ActiveLock) -> int:
        return lock.info.waiters

    @admin.display(description=gettext_lazy("fencing token"))
    def fencing_token(self, lock: ActiveLock) -> str | None:
        return of_first(lock.info, fence_text)

    # One lock

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> ActiveLock:
        """Return the lock of that name, held or not: its history outlives it."""
        return ActiveLock(name=object_id)

    @plain_when_redis_is_away
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request) or request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        name = unquote_name(object_id)
        row = find_row(name)
        if row is None:
            text = _("“%(name)s” is not locked now.") % {"name": printable(name)}
            return self._back_to_list(request, text, messages.WARNING)
        return self._page(request, "detail", **self._detail(request, row), **(extra_context or {}))

    def _detail(self, request: HttpRequest, row: ActiveLock) -> dict[str, Any]:
        info = row.info
        return {
            "title": printable(info.name),
            "original": row,
            "change": True,
            # Django before 6.1 draws the object tools inside of the content block.
            "tools_in_content": django.VERSION < (6, 1),
            "facts": lock_facts(info),
            "holders": [holding_facts(holding) for holding in info.holders],
            "seen": Seen.dump(seen_of(info)),
            "may_release": self.has_release_permission(request) and info.holders,
        }

    # Release

    def get_urls(self) -> list[URLPattern]:
        release = self.admin_site.admin_view(self.release_view)
        name = url_name("release").removeprefix("admin:")
        return [path("release/", release, name=name), *super().get_urls()]

    @admin.action(
        permissions=["release"],
        description=gettext_lazy("Release selected %(verbose_name_plural)s"),
    )
    def release_selected(self, request: HttpRequest, rows: LockRows) -> HttpResponse:
        """Ask for confirmation; only `release_view` releases."""
        self._require_release(request)
        held = [(row.name, holding) for row in rows for holding in row.info.holders]
        return self._confirm(request, held, gone=[])

    @plain_when_redis_is_away
    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then release (POST with `confirmed`) the holders that were seen."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._list_url())
        seen = Seen.parse(request.POST.get("seen", ""))
        if "confirmed" in request.POST:
            return self._release(request, seen)
        pairs = [(one, one.holding()) for one in seen]
        held = [(one.name, holding) for one, holding in pairs if holding]
        return self._confirm(request, held, gone=[one.name for one, h in pairs if not h])

    def _require_release(self, request: HttpRequest) -> None:
        if not self.has_release_permission(request):
            raise PermissionDenied

    def _confirm(
        self, request: HttpRequest, held: Sequence[tuple[str, Holding]], gone: Sequence[str]
    ) -> HttpResponse:
        if not held:
            return self._back_to_list(request, _("Nothing to release."), messages.WARNING, gone)
        return self._page(
            request,
            "release_confirmation",
            title=_("Release locks"),
            held=[confirmation_row(name, holding) for name, holding in held],
            gone=[printable(name) for name in gone],
            seen=Seen.dump(Seen(name, holding.fence_token) for name, holding in held),
        )

    def _release(self, request: HttpRequest, seen: Iterable[Seen]) -> HttpResponse:
        released: list[str] = []
        gone: list[str] = []
        try:
            for one in seen:
                (released if self._release_one(request, one) else gone).append(one.name)
        except RedisError as error:
            self.message_user(request, away_text(error), messages.ERROR)
        return self._back_to_list(request, released_text(released), level_of(released), gone)

    def _release_one(self, request: HttpRequest, seen: Seen) -> bool:
        holding = seen.holding()
        if holding is None:
            return False
        if not locks.force_release(seen.name, holding.token, user=request.user):
            return False
        self.log_change(request, ActiveLock(name=seen.name), log_text(holding))
        return True

    # Pages

    def unavailable(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Return the page that says that the locks can't be asked for now."""
        context = {"title": _("Locks are not available"), "error": away_text(error)}
        return self._page(request, "unavailable", status=503, **context)

    def _page(
        self, request: HttpRequest, template: str, status: int = 200, **context: Any
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "list_url": self._list_url(),
            "release_url": self._url("release"),
        }
        return TemplateResponse(
            request, f"{TEMPLATES}/{template}.html", {**common, **context}, status=status
        )

    def _back_to_list(
        self, request: HttpRequest, text: str, level: int, gone: Sequence[str] = ()
    ) -> HttpResponse:
        self.message_user(request, text, level)
        if gone:
            self.message_user(request, gone_text(gone), messages.WARNING)
        return HttpResponseRedirect(self._list_url())

    def _list_url(self) -> str:
        return self._url("changelist")

    def _url(self, page: str) -> str:
        return reverse(url_name(page), current_app=self.admin_site.name)


def url_name(page: str) -> str:
    return f"admin:django_redislock_activelock_{page}"


def quote_name(name: str) -> str:
    """Return `name` as part of a URL; a browser would take dots alone for a way up."""
    return quote(name) if name.strip(".") else name.replace(".", "_2E")


def unquote_name(text: str) -> str:
    # `quote` writes an underscore as _5F, so this one is always from `quote_name`.
    return unquote(text.replace("_2E", "."))


def as_pattern(query: str) -> str | None:
    """Return what was searched for as a pattern: any part of a name, unless it has wildcards."""
    query = query.strip()
    if not query or "*" in query or "?" in query:
        return query or None
    return f"*{query}*"


def find_row(name: str) -> ActiveLock | None:
    try:
        info = locks.get(check_name(name))
    except ValueError:  # a URL or a form can ask for what is no name at all
        return None
    return ActiveLock.of(info) if info else None


def oldest_first(info: LockInfo) -> tuple[bool, float, str]:
    since = info.acquired_at
    return since is None, since.timestamp() if since else 0.0, info.name


def seen_of(info: LockInfo) -> list[Seen]:
    return [Seen(info.name, holding.fence_token) for holding in info.holders]


def of_first(info: LockInfo, text: Callable[[Holding], str]) -> str | None:
    return text(info.first) or None if info.first else None


def with_others(info: LockInfo) -> str | None:
    others = len(info.holders) - 1
    text = of_first(info, holder_text)
    return f"{text} (+{others})" if others > 0 else text


def age_text(holding: Holding) -> str:
    return short_duration(age(holding))


def left_text(holding: Holding) -> str:
    return short_duration(holding.ttl)


def fence_text(holding: Holding) -> str:
    # As text, so that no locale puts separators in.
    return str(holding.fence_token)


Facts = list[tuple[str, str]]


def lock_facts(info: LockInfo) -> Facts:
    return [
        (_("Name"), printable(info.name)),
        (_("Kind"), printable(info.kind)),
        (_("State"), printable(info.state)),
        (_("Capacity"), str(info.capacity)),
        (_("Waiters"), str(info.waiters)),
    ]


def holding_facts(holding: Holding) -> Facts:
    holder = holding.holder
    return [
        (_("Host"), printable(holder.host)),
        (_("Process"), str(holder.pid)),
        (_("Thread"), printable(holder.thread)),
        (_("Task"), printable(holder.task_name or "")),
        (_("Task id"), printable(holder.task_id or "")),
        (_("Acquired"), holding.acquired_at.isoformat(sep=" ", timespec="milliseconds")),
        (_("Age"), age_text(holding)),
        (_("Lease"), short_duration(holding.timeout)),
        (_("Time left"), left_text(holding)),
        (_("Expires"), holding.expires_at.isoformat(sep=" ", timespec="milliseconds")),
        (_("Fencing token"), fence_text(holding)),
        (_("Weight"), str(holding.weight)),
        (_("Metadata"), metadata_text(holding)),
    ]


def metadata_text(holding: Holding) -> str:
    if not holding.metadata:
        return ""
    text = json.dumps(dict(holding.metadata), ensure_ascii=False, indent=2, default=str)
    return "\n".join(printable(line) for line in text.split("\n"))


def confirmation_row(name: str, holding: Holding) -> dict[str, str]:
    return {
        "name": printable(name),
        "holder": holder_text(holding),
        "task": task_text(holding),
        "age": age_text(holding),
        "left": left_text(holding),
        "fence": fence_text(holding),
    }


def log_text(holding: Holding) -> str:
    """Return the line for the log of admin actions: plain text, in one language as logs are."""
    task = task_text(holding)
    held_by = f"{holder_text(holding)}, task {task}" if task else holder_text(holding)
    return (
        f"Released by force. Held by {held_by} for {age_text(holding)};"
        f" fencing token {fence_text(holding)}."
    )


def away_text(error: Exception) -> str:
    return _("The locks can't be read: %(error)s") % {"error": printable(error)}


def released_text(names: Sequence[str]) -> str:
    if len(names) == 1:
        return _("Released “%(name)s”.") % {"name": printable(names[0])}
    if not names:
        return _("Nothing was released.")
    return _("Released %(count)d locks.") % {"count": len(names)}


def level_of(released: Sequence[str]) -> int:
    return messages.SUCCESS if released else messages.WARNING


def gone_text(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:NAMES_IN_MESSAGE])
    if len(names) > NAMES_IN_MESSAGE:
        shown += ", …"
    return ngettext(
        "%(count)d has changed hands or come free since, and was left alone: %(names)s",
        "%(count)d have changed hands or come free since, and were left alone: %(names)s",
        len(names),
    ) % {"count": len(names), "names": shown}
