"""What became of those who held locks when something struck: what a scenario of failovers tells
beside its row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from .behind import on_no_replica, times
from .checker import Findings, Hold, check
from .events import Event, read
from .scenario import Setting

AT_ONCE = 0.5
"""Seconds that it may take, on a busy machine, to tell a holder what its own clock says."""

ENOUGH = 4
"""Times that replicas were behind in which locks surely counted that no replica had, unless they
have to wait for one: else nothing is proved where they do."""


@dataclass(frozen=True)
class Loss:
    """A lock that was lost in a run whose fault struck while it was held, or before."""

    hold: Hold
    fault: float

    @property
    def told_after(self) -> float:
        """Seconds from the fault until its holder knew."""
        return self.hold.until - self.fault


def tell(setting: Setting, min_replicas: int = 0) -> None:
    """AssertionError where a loser knew too late, or a lock counted that was not on as many
    replicas as it had to be."""
    events = read(setting.folder)
    found, lags, too_early = check(events), times(events), list(on_no_replica(events))
    setting.notes += [
        *_about_losses(list(losses(found))),
        *_about_overlaps(found),
        *_about_acquiring(found),
        *_about_replicas(lags, too_early),
    ]
    _none(too_late(found), "knew too late")
    if min_replicas:
        _none(too_early, "counted, and on no replica")
    elif len(lags) >= ENOUGH:
        assert too_early, "no replica was behind"


def _none(particulars: Iterable[str], what: str) -> None:
    found = list(particulars)
    assert not found, f"{len(found)} {what}: {'; '.join(found[:3])}"


def too_late(found: Findings) -> Iterator[str]:
    """Who took a lock for held when its lease had ended on its own clock; or was told later than
    what its own clock says."""
    for hold in found.holds:
        if hold.looked > hold.deadline:
            yield f"{hold.lock}: {hold} took it for held at {hold.looked:.4f}"
    for late in found.told_after:
        if late > AT_ONCE:
            yield f"one was told {late:.2f} s after the end of its lease"


def losses(found: Findings) -> Iterator[Loss]:
    for fault in found.faults:
        for hold in found.holds:
            if _is_of(fault, hold) and hold.lost and hold.asked <= fault["t"] < hold.lost:
                yield Loss(hold, fault["t"])


def _is_of(fault: Event, hold: Hold) -> bool:
    run = fault.get("lock")
    return run is not None and (hold.lock == run or hold.lock.startswith(f"{run} kept"))


def _about_losses(lost: Sequence[Loss]) -> Iterator[str]:
    told = sorted(loss.told_after for loss in lost)
    by_itself = [loss.hold for loss in lost if loss.hold.until >= loss.hold.deadline]
    if told:
        yield (
            f"{len(told)} locks were lost; their holders knew after {median(told):.1f} s "
            f"(median) and {told[-1]:.1f} s at most, {len(told) - len(by_itself)} of them before "
            f"their lease ended and {len(by_itself)} when it did, by their own clock"
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


def _about_replicas(lags: Sequence[Event], too_early: Sequence[str]) -> Iterator[str]:
    if lags:
        yield (
            f"{len(too_early):,} acquisitions and renewals counted before a replica had them, in "
            f"{len(lags)} times in which replicas were behind"
        )


def _about_acquiring(found: Findings) -> Iterator[str]:
    failed = [each for each in found.errors if each["during"] == "acquire"]
    at_once = [hold.began - hold.asked for hold in found.holds if hold.queued is None] or [0]
    yield (
        f"{len(found.holds):,} acquisitions succeeded and {len(failed):,} failed; "
        f"one without a wait took {median(at_once) * 1000:.1f} ms (median)"
    )
