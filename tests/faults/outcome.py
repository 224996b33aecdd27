"""What became of those who held locks when something struck: what a scenario of failovers tells
beside its row."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from .checker import Findings, Hold, check
from .events import Event, read
from .scenario import Setting


@dataclass(frozen=True)
class Loss:
    """A lock that was lost in a run whose fault struck while it was held, or before."""

    hold: Hold
    fault: float

    @property
    def told_after(self) -> float:
        """Seconds from the fault until its holder knew."""
        return self.hold.until - self.fault


def tell(setting: Setting) -> None:
    found = check(read(setting.folder))
    lost = list(losses(found))
    setting.notes += [*_about_losses(lost), *_about_overlaps(found), *_about_acquiring(found)]


def losses(found: Findings) -> Iterator[Loss]:
    for fault in found.faults:
        for hold in found.holds:
            if _is_of(fault, hold) and hold.lost and hold.asked <= fault["t"] < hold.lost:
                yield Loss(hold, fault["t"])


def _is_of(fault: Event, hold: Hold) -> bool:
    run = fault.get("lock")
    return run is not None and (hold.lock == run or hold.lock.startswith(f"{run} kept"))


def _about_losses(lost: Iterable[Loss]) -> Iterator[str]:
    told = sorted(loss.told_after for loss in lost)
    if told:
        yield (
            f"{len(told)} locks were lost; their holders knew after {median(told):.1f} s "
            f"(median) and {told[-1]:.1f} s at most, each before its lease ended"
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


def _about_acquiring(found: Findings) -> Iterator[str]:
    failed = [each for each in found.errors if each["during"] in ("acquire", "aloop")]
    at_once = [hold.began - hold.asked for hold in found.holds if hold.queued is None] or [0]
    yield (
        f"{len(found.holds):,} acquisitions succeeded and {len(failed):,} failed; "
        f"one without a wait took {median(at_once) * 1000:.1f} ms (median)"
    )
