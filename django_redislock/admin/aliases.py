"""The cache aliases of a page: which have locks, and which do not answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

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

    error: BaseException | None = None
    """The error if it did not answer."""


def aliases_of(request: HttpRequest) -> tuple[Alias, ...]:
    """Return the cache aliases that have or had locks, found once per request.

    ``REDISLOCK_CACHE`` comes first. It, an alias that does not answer, and the alias that the
    address names are included in any case.

    Several are asked in parallel, so one server that does not respond delays a page by a second
    only. One alias is not asked.
    """
    found: tuple[Alias, ...] | None = getattr(request, "redislock_aliases", None)
    if found is None:
        managers = locks.everywhere()
        if len(managers) == 1:
            found = (Alias(conf.cache, managers[0]),)
        else:
            found = _ask(managers, request.GET.get("using"))
        request.redislock_aliases = found  # type: ignore[attr-defined]
    return found


def _ask(managers: tuple[LockManager, ...], using: str | None) -> tuple[Alias, ...]:
    executor = ThreadPoolExecutor(len(managers), thread_name_prefix="redislock-admin")
    answers = [executor.submit(_has_locks, manager) for manager in managers]
    executor.shutdown(wait=False)
    wait(answers, TIMEOUT_SECONDS)
    late = TimeoutError(f"No response within {TIMEOUT_SECONDS:g} s")
    found: list[Alias] = []
    for manager, answer in zip(managers, answers, strict=True):
        error = answer.exception() if answer.done() else late
        if error or not found or manager.alias == using or answer.result():
            found.append(Alias(manager.alias, manager, error))
    return tuple(found)


def _has_locks(manager: LockManager) -> bool:
    return bool(manager.count() or (conf.history and manager.history(limit=1)))
