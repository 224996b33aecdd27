"""The active locks in Django's admin: list them, look at one, release some.

The rows come from Redis, through the lock manager; the database is asked only
for users, permissions and the log of admin actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import django
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from ..info import Holding
from ..manager import locks
from ..models import ActiveLock
from ..text import holder_text, printable, task_text
from .addresses import unquote_name, url_name
from .rows import LockChangeList, LockRows, find_row
from .seen import Seen, seen_of
from .wording import (
    age_text,
    away_text,
    confirmation_row,
    fence_text,
    gone_text,
    holding_facts,
    left_text,
    level_of,
    lock_facts,
    log_text,
    of_first,
    released_text,
    with_others,
)

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[ActiveLock]
else:
    BaseAdmin = admin.ModelAdmin

TEMPLATES = "admin/django_redislock/activelock"


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
