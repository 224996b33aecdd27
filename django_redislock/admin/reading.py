"""Read the locks of the cache alias of a page, once per request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter

from django.conf import settings
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest
from redis.exceptions import RedisError

from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import search_pattern
from ..text import read_at

UNREADABLE = (RedisError, ImproperlyConfigured)
"""The errors of a cache alias that cannot be read."""


def manager_of(request: HttpRequest) -> LockManager:
    """Return the manager of the cache alias that the address names, or else of
    ``REDISLOCK_CACHE``."""
    alias = request.GET.get("using")
    if alias and alias not in settings.CACHES:
        raise Http404
    return locks.using(alias or None)


def known_aliases() -> list[str]:
    """Return the cache aliases that a page offers: all that can store locks."""
    return [manager.alias for manager in locks.everywhere()]


@dataclass(frozen=True, slots=True)
class Reading:
    """The locks whose names match the search of a request."""

    rows: list[ActiveLock]  # that were read. Those that need attention come first
    total: int  # how many locks match
    is_complete: bool  # whether no more locks match than were read
    at: datetime  # when the first of them was read, by the clock of the server


def read_locks(request: HttpRequest, list_max: int) -> Reading:
    """Read the first `list_max` locks of the page's cache alias: those whose leases end first.

    The locks are read once per request.

    Raises:
        RedisError: The cache alias cannot be read.
        ImproperlyConfigured: The same, because of a setting.
    """
    found: Reading | None = getattr(request, "redislock_reading", None)
    if found:
        return found
    search = request.GET.get(SEARCH_VAR)
    manager = manager_of(request)
    page = manager.page(search_pattern(search) if search else None, stop=list_max)
    rows = [ActiveLock.of(info.name, manager.alias, info) for info in page.infos]
    found = Reading(
        rows=sorted(rows, key=attrgetter("urgency")),
        total=page.total,
        is_complete=page.total <= list_max,
        at=min([read_at(row.primary) for row in rows if row.primary], default=datetime.now(UTC)),
    )
    request.redislock_reading = found  # type: ignore[attr-defined]
    return found
