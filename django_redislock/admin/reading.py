"""Read the locks of all cache aliases, once per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from redis.exceptions import RedisError, TimeoutError

from ..conf import conf
from ..manager import LockManager, locks
from ..models import ActiveLock

FIRST_LOCKS = 200  # that are read in one round trip. Most servers have no more
ALIAS_TIMEOUT_SECONDS = 1.0  # for each of several cache aliases


Failure = tuple[str, BaseException]
"""A cache alias that could not be read, and the error."""


class Alias(NamedTuple):
    """A cache alias that can store locks."""

    name: str
    manager: LockManager
    error: BaseException | None = None  # if it did not answer


def aliases_of(request: HttpRequest) -> tuple[Alias, ...]:
    """Return the cache aliases that have or had locks, found once per request.

    ``REDISLOCK_CACHE`` comes first. It, an alias that does not answer, and the alias that the
    address names are included in any case.
    """
    found: tuple[Alias, ...] | None = getattr(request, "redislock_aliases", None)
    if found is None:
        managers = locks.everywhere()
        found = (Alias(conf.cache, managers[0]),)
        if len(managers) > 1:
            found = tuple(_answering(managers, request.GET.get("using")))
        request.redislock_aliases = found  # type: ignore[attr-defined]
    return found


def _answering(managers: Sequence[LockManager], using: str | None) -> Iterator[Alias]:
    """Ask all in parallel, so that one server that does not respond delays a page by a second."""

    def has_locks(manager: LockManager) -> bool:
        return bool(manager.count() or (conf.history and manager.history(limit=1)))

    executor = ThreadPoolExecutor(len(managers), thread_name_prefix="redislock-admin")
    answers = [executor.submit(has_locks, manager) for manager in managers]
    executor.shutdown(wait=False)
    wait(answers, ALIAS_TIMEOUT_SECONDS)
    late = TimeoutError(f"No response within {ALIAS_TIMEOUT_SECONDS:g} s")
    for manager, answer in zip(managers, answers, strict=True):
        error = answer.exception() if answer.done() else late
        if error or manager is managers[0] or manager.alias == using or answer.result():
            yield Alias(manager.alias, manager, error)


@dataclass(frozen=True, slots=True)
class Reading:
    """The locks whose names match the search of a request."""

    rows: list[ActiveLock]  # that were read. Those that need attention come first
    total: int  # how many locks match
    is_complete: bool  # whether no alias has more locks than were read
    failures: list[Failure]


def read_locks(request: HttpRequest, list_max: int) -> Reading:
    """Read the first `list_max` locks of each cache alias: those whose leases end first.

    The locks are read once per request.

    Raises:
        RedisError: No cache alias can be read.
        ImproperlyConfigured: The same, because of a setting.
    """
    found: Reading | None = getattr(request, "redislock_reading", None)
    if found:
        return found
    text = request.GET.get(SEARCH_VAR, "").strip()
    pattern = text if "*" in text or "?" in text else f"*{text}*"
    rows: list[ActiveLock] = []
    failures: list[Failure] = []
    total, is_complete, aliases = 0, True, aliases_of(request)
    for alias in aliases:
        try:
            if alias.error:
                raise alias.error
            stop = list_max if text else min(FIRST_LOCKS, list_max)
            page = alias.manager.page(pattern if text else None, stop=stop)
            if stop < min(page.total, list_max):
                page = alias.manager.page(stop=list_max)
        except (RedisError, ImproperlyConfigured) as error:
            failures.append((alias.name, error))
        else:
            rows += [ActiveLock.of(info.name, alias.name, info) for info in page.infos]
            total += page.total
            is_complete = is_complete and page.total <= list_max
    if len(failures) == len(aliases):
        raise failures[0][1]
    locks_read = without_shares(rows) if len(aliases) > 1 else rows
    found = Reading(
        rows=sorted(locks_read, key=attrgetter("urgency")),
        total=total - len(rows) + len(locks_read),
        is_complete=is_complete,
        failures=failures,
    )
    request.redislock_reading = found  # type: ignore[attr-defined]
    return found


def without_shares(rows: list[ActiveLock]) -> list[ActiveLock]:
    """Return one row for each quorum lock, with the rows of its other servers as its shares."""
    found: dict[tuple[str, str] | int, ActiveLock] = {}
    for row in rows:
        # A holder has the same lock token on all servers of a quorum lock.
        holding = row.primary if row.info.kind == "quorum" else None
        key = (row.name, holding.token) if holding else id(row)
        first = found.setdefault(key, row)
        if first is not row:
            first.shares += (row,)
    return list(found.values())
