"""What became of those who held locks when something struck: what a scenario of failovers tells
beside its row."""

from collections.abc import Iterable, Iterator
from itertools import combinations
from statistics import median

from .behind import on_no_replica, times
from .checker import Findings, check
from .events import read
from .scenario import Setting

AT_ONCE = 0.5
"""Seconds that it may take, on a busy machine, to tell a holder what its own clock says."""

ENOUGH = 4
"""Times that replicas were behind in which locks surely counted that no replica had, unless they
have to wait for one: else nothing is proved where they do."""


def tell(setting: Setting, min_replicas: int = 0) -> None:
    """AssertionError if a loser knew too late, or a lock counted that was not on as many replicas
    as it had to be."""
    events = read(setting.folder)
    found, lags, too_early = check(events), times(events), list(on_no_replica(events))
    setting.notes += [*_about_losses(found), *_about_overlaps(found)]
    failed = [each for each in found.errors if each["during"] == "acquire"]
    at_once = [hold.began - hold.asked for hold in found.holds if hold.queued is None] or [0]
    setting.notes.append(
        f"{len(found.holds):,} acquisitions succeeded and {len(failed):,} failed; "
        f"one without a wait took {median(at_once) * 1000:.1f} ms (median)"
    )
    if lags:
        setting.notes.append(
            f"{len(too_early):,} acquisitions and renewals counted before a replica had them, in "
            f"{len(lags)} times in which replicas were behind"
        )
    _none(too_late(found), "knew too late")
    if min_replicas:
        _none(too_early, "counted, and on no replica")
    elif len(lags) >= ENOUGH:
        assert too_early, "no replica was behind"


def _none(particulars: Iterable[str], what: str) -> None:
    found = list(particulars)
    assert not found, f"{len(found)} {what}: {'; '.join(found[:3])}"


def too_late(found: Findings) -> Iterator[str]:
    """Holders that believed in a lease that had ended on their own clock, or that were told later
    than what their own clock says."""
    for hold in found.holds:
        if hold.looked > hold.deadline:
            yield f"{hold.lock}: {hold} took it for held at {hold.looked:.4f}"
    for late in found.told_after:
        if late > AT_ONCE:
            yield f"one was told {late:.2f} s after the end of its lease"


def _about_losses(found: Findings) -> Iterator[str]:
    """Of the locks that were held, or granted, in a run when a fault struck it."""
    lost = [
        (hold.until - fault["t"], hold.until >= hold.deadline)
        for fault in found.faults
        for hold in found.holds
        if hold.lock == fault.get("lock") or hold.lock.startswith(f"{fault.get('lock')} kept")
        if hold.lost and hold.asked <= fault["t"] < hold.lost
    ]
    told, by_itself = sorted(seconds for seconds, _ in lost), sum(own for _, own in lost)
    if told:
        yield (
            f"{len(told)} locks were lost; their holders knew after {median(told):.1f} s "
            f"(median) and {told[-1]:.1f} s at most, {len(told) - by_itself} of them before "
            f"their lease ended and {by_itself} when it did, by their own clock"
        )


def _about_overlaps(found: Findings) -> Iterator[str]:
    lasted = [
        min(one.until, other.until) - max(one.began, other.began)
        for lock in {hold.lock for hold in found.holds}
        for one, other in combinations([hold for hold in found.holds if hold.lock == lock], 2)
    ]
    lasted = sorted(seconds for seconds in lasted if seconds > 0)
    if lasted:
        yield f"overlaps lasted {median(lasted):.2f} s (median) and {lasted[-1]:.2f} s at most"
