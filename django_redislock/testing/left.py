"""An assertion that no lock is held."""

import time
from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured

from .. import clock, validators
from ..manager import LockManager, locks
from ..snapshots import LockInfo
from ..text import holder_text, printable, task_text
from ..validators import Seconds

LOOK_EVERY = 0.02
"""Seconds."""


def assert_nothing_held(*, using: str | None = None, within: Seconds = 1) -> None:
    """Assert that no lock is held. A queue lock counts as held, and a cooldown does not.

    Args:
        using: The cache alias to check. None means all aliases that can store locks.
        within: The seconds to wait for a renewal thread or a worker that is about to release a
            lock.

    Raises:
        AssertionError: A lock is held. The message names the locks and their holders.
    """
    longest = validators.at_least("within", within)
    managers = locks.everywhere() if using is None else (locks.using(using),)
    end = clock.now() + longest  # which no test freezes
    while held := list(_held(managers)):
        if clock.now() >= end:
            raise AssertionError("\n".join(["Locks are still held:", *sorted(held)]))
        time.sleep(LOOK_EVERY)


def _held(managers: tuple[LockManager, ...]) -> Iterator[str]:
    for manager in managers:
        try:
            yield from _held_on(manager)
        except ImproperlyConfigured:
            if manager is managers[0]:
                raise


def _held_on(manager: LockManager) -> Iterator[str]:
    for info in manager.active():
        if info.state == "held":
            yield from _lines(manager.alias, info)


def _lines(alias: str, info: LockInfo) -> Iterator[str]:
    for holding in info.holders:
        who = " ".join(filter(None, ["by", holder_text(holding), task_text(holding)]))
        queued = ", queued" if holding.metadata.get("queued") is True else ""
        yield f"  {printable(info.name)!r} on {printable(alias)!r} {who}{queued}"
