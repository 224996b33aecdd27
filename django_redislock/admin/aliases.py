"""The cache aliases of a page: which have locks, and which do not answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import attrgetter

from django.http import HttpRequest
from redis.exceptions import TimeoutError

from ..conf import conf
from ..manager import LockManager, locks

TIMEOUT_SECONDS = 1.0
"""The time for one of several cache aliases to answer."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A cache alias that can store locks."""

    name: str

    manager: LockManager

    is_used: bool = True
    """Whether it has locks now, or had some. Also true if it did not answer."""

    error: Exception | None = None
    """The error if it did not answer."""


def aliases_of(request: HttpRequest) -> tuple[Alias, ...]:
    """Return all cache aliases that can store locks, found once per request.

    Several are asked in parallel, so one server that does not respond delays a page by a second
    only. One alias is not asked.
    """
    found: tuple[Alias, ...] | None = getattr(request, "redislock_aliases", None)
    if found is None:
        managers = locks.everywhere()
        found = (Alias(managers[0].alias, managers[0]),) if len(managers) == 1 else _ask(managers)
        request.redislock_aliases = found  # type: ignore[attr-defined]
    return found


def used_aliases(request: HttpRequest) -> tuple[Alias, ...]:
    """Return the aliases that have or had locks, and ``REDISLOCK_CACHE``."""
    first, *others = aliases_of(request)
    return (first, *filter(attrgetter("is_used"), others))


def _ask(managers: tuple[LockManager, ...]) -> tuple[Alias, ...]:
    executor = ThreadPoolExecutor(len(managers), thread_name_prefix="redislock-admin")
    answers = [executor.submit(_has_locks, manager) for manager in managers]
    executor.shutdown(wait=False)
    wait(answers, TIMEOUT_SECONDS)
    late = TimeoutError(f"No response within {TIMEOUT_SECONDS:g} s")
    found = []
    for manager, answer in zip(managers, answers, strict=True):
        error = answer.exception() if answer.done() else late
        is_used = bool(error) or answer.result()
        found.append(Alias(manager.alias, manager, is_used, error))  # type: ignore[arg-type]
    return tuple(found)


def _has_locks(manager: LockManager) -> bool:
    return bool(manager.count() or (conf.history and manager.history(limit=1)))
