"""Read the locks of all cache aliases, once per request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter, methodcaller
from typing import NamedTuple, TypeVar

from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from redis.exceptions import RedisError, TimeoutError

from ..conf import conf
from ..manager import LockManager, locks
from ..models import ActiveLock
from ..names import search_pattern
from ..text import read_at
from .queryset import LockQuerySet

ALIAS_TIMEOUT_SECONDS = 1.0
"""How long each of several cache aliases may take to return whether it has locks."""

READ_TIMEOUT_SECONDS = 5.0
"""How long each of several cache aliases may take to return its locks."""

T = TypeVar("T")

UNREADABLE = (RedisError, ImproperlyConfigured)
"""The errors of a cache alias that cannot be read."""

Failure = tuple[str, BaseException]
"""A cache alias that could not be read, and the error."""


class Alias(NamedTuple):
    """A cache alias that can store locks."""

    name: str
    manager: LockManager
    error: BaseException | None = None  # if it did not answer


def ask_all(
    aliases: Sequence[Alias],
    ask: Callable[[LockManager], T],
    seconds: float = READ_TIMEOUT_SECONDS,
) -> list[T | BaseException]:
    """Return the answer of each cache alias, or the error.

    Several aliases are asked in parallel. Then an answer that takes longer than `seconds` is an
    error, so that a server that does not respond does not delay the page.
    """

    def answer_of(alias: Alias) -> T | BaseException:
        try:
            return alias.error or ask(alias.manager)
        except UNREADABLE as error:
            return error

    if len(aliases) == 1:
        return [answer_of(aliases[0])]
    executor = ThreadPoolExecutor(len(aliases), thread_name_prefix="redislock-admin")
    answers = [executor.submit(answer_of, each) for each in aliases]
    executor.shutdown(wait=False)
    wait(answers, seconds)
    late = TimeoutError(f"No response within {seconds:g} s")
    return [each.result() if each.done() else late for each in answers]


def aliases_of(request: HttpRequest) -> tuple[Alias, ...]:
    """Return the cache aliases that have or had locks, found once per request.

    ``REDISLOCK_CACHE`` comes first. It, an alias that does not answer, and the alias that the
    address names are included in any case.
    """

    def has_locks(manager: LockManager) -> bool:
        return bool(manager.count() or (conf.history and manager.history(limit=1)))

    found: tuple[Alias, ...] | None = getattr(request, "redislock_aliases", None)
    if found is None:
        managers = locks.everywhere()
        found = (Alias(conf.cache, managers[0]),)
        if len(managers) > 1:
            found = tuple(Alias(manager.alias, manager) for manager in managers)
            needed = conf.cache, request.GET.get("using")
            answers = ask_all(found, has_locks, ALIAS_TIMEOUT_SECONDS)
            found = tuple(
                alias._replace(error=answer if isinstance(answer, BaseException) else None)
                for alias, answer in zip(found, answers, strict=True)
                if answer or alias.name in needed
            )
        request.redislock_aliases = found  # type: ignore[attr-defined]
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """The locks whose names match the search of a request."""

    rows: list[ActiveLock]  # that were read. Those that need attention come first
    total: int  # how many locks match
    is_complete: bool  # whether no alias has more locks than were read
    failures: list[Failure]
    at: datetime  # when the first of them was read, by the clock of its server


def shown_aliases(request: HttpRequest, visible: LockQuerySet) -> list[str]:
    """Return the cache aliases that a page may name.

    If the user may not see all locks, these are the aliases of the visible locks that were read,
    ``REDISLOCK_CACHE``, and the alias that the address names.
    """
    names = [each.name for each in aliases_of(request)]
    if not visible.tests or len(names) < 2:
        return names
    with_visible_locks: set[str] = {conf.cache, request.GET.get("using", "")}
    with suppress(*UNREADABLE):
        with_visible_locks.update(alias for row in visible.rows for alias in row.aliases)
    return [each for each in names if each in with_visible_locks]


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
    search = request.GET.get(SEARCH_VAR)
    pattern = search_pattern(search) if search else None
    rows: list[ActiveLock] = []
    failures: list[Failure] = []
    total, is_complete, aliases = 0, True, aliases_of(request)
    pages = ask_all(aliases, methodcaller("page", pattern, stop=list_max))
    for alias, page in zip(aliases, pages, strict=True):
        if isinstance(page, BaseException):
            failures.append((alias.name, page))
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
        at=min([read_at(row.primary) for row in rows if row.primary], default=datetime.now(UTC)),
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
            first.add_share(row)
    return list(found.values())
