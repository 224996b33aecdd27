"""Read a history, and compare what the clients believed with what the package promises.

A **belief** is the period in which a client may act on a lock. It starts when the client learns
that it holds the lock. It ends with the first of these: the client begins to release the lock,
learns that the lock is lost, its lease expires on its own clock (`lock.lost` becomes true), or it
dies. Two beliefs at the same time are an **overlap**. The `judge` says what the clients did,
whatever they believed.

The order of holders follows from the times at which clients acquired the lock, not from their
fencing tokens, which may be wrong. If a client learns of its acquisition while its lease lasts,
its place in the order is known. If it learns of it too late, because its process or server was
paused, the acquisition is known only to lie between the request and that moment.
"""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from .events import Event
from .judge import Span, grouped, spans

FAULTS = ("killed", "stopped", "fault")
NOT_OWNED = ("LockNotOwnedError", "LockLost")

BEGAN, ASKED, FENCE = map(attrgetter, ("began", "asked", "fence"))
TIME = itemgetter("t")


@dataclass
class Hold:
    """One hold of a lock by a client."""

    who: str
    lock: str
    token: Any
    fence: int
    asked: float
    began: float  # when the client learned of it
    queued: float | None = None  # when it was certainly queued, if it had to wait
    dead: float = math.inf  # when its client was certainly dead
    deadline: float = math.inf  # end of its lease on the client's clock, after the last renewal
    lease: float = 0.0  # longest lease in seconds that a renewal set
    looked: float = -math.inf  # last check at which the lock was held
    ended: float = math.inf  # when the client died, began to release, or learned of the loss
    released: float | None = None  # when the release had certainly ended
    lost: float | None = None  # when the client first learned that the lock is lost or not owned
    lost_after: float = 0.0  # seconds from the lease's deadline at that time to `lost`

    @property
    def until(self) -> float:
        """The end of the client's belief."""
        return max(min(self.ended, self.deadline), self.looked)

    @property
    def gone(self) -> float:
        """The time from which others can acquire the lock. A client that died may have renewed the
        lease just before, without logging the renewal."""
        if self.released is not None:
            return self.released
        return max(self.deadline, self.dead + self.lease if self.dead < math.inf else 0)

    @property
    def is_empty(self) -> bool:
        """Whether the hold had ended before its client learned of it. Its begin at the server is
        then unknown."""
        return self.until <= self.began

    def __str__(self) -> str:
        return f"{self.who} ({self.fence}; {self.began:.4f} to {self.until:.4f})"


class Wait(NamedTuple):
    """One acquisition by a client, until it succeeded, was refused, failed, or the client died."""

    who: str
    lock: str
    died: bool  # whether the client died while it waited


@dataclass
class Findings:
    """Measurements of a history, and its violations."""

    holds: list[Hold]
    faults: list[Event]
    errors: list[Event]
    until_free: list[float]  # seconds from each fault of a holder to the next holder
    # Seconds from the end of a lease until its holder learned of the loss; negative if it learned
    # of it before. Without holders that were paused, were releasing, or never believed.
    reported_after: list[float]
    overlaps: list[str] = field(default_factory=list)
    fences: list[str] = field(default_factory=list)  # fencing tokens that did not grow
    overtakings: list[str] = field(default_factory=list)
    not_owned: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def check(events: Sequence[Event], *, exclusive: bool = True) -> Findings:
    """Find the violations. If locks are not `exclusive`, two clients can hold one at the same
    time. One then came later only if it asked while the other already held the lock."""
    history = History(events, exclusive)
    found = Findings(
        holds=history.holds,
        faults=history.of(*FAULTS),
        errors=history.of("error"),
        until_free=list(times_until_free(history)),
        reported_after=list(times_until_reported(history)),
        not_owned=list(false_not_owned(history)),
        phantoms=list(phantoms(history)),
        leftovers=list(map(str, history.of("left"))),
    )
    for holds in history.by_lock.values():
        found.overlaps += overlaps(holds)
        found.fences += fences_that_did_not_grow(holds, history)
        found.overtakings += overtakings(holds, history)
    return found


# Violations


def overlaps(holds: Iterable[Hold]) -> Iterator[str]:
    believing: list[Hold] = []
    for hold in sorted(holds, key=BEGAN):
        if hold.until <= hold.began:
            continue
        believing = [each for each in believing if each.until > hold.began]
        if believing:
            yield f"{hold.lock}: {hold} while {', '.join(map(str, believing))}"
        believing.append(hold)


def fences_that_did_not_grow(holds: Sequence[Hold], history: "History") -> Iterator[str]:
    """Compare two holders if one asked while the other already held the lock, or if they cannot
    hold it together."""
    by_began = sorted(holds, key=BEGAN)
    greatest = list(accumulate(by_began, partial(max, key=FENCE)))
    for after in holds:
        place = bisect(by_began, after.asked, key=BEGAN)
        if place and greatest[place - 1].fence >= after.fence:
            yield f"{after.lock}: {after} after {greatest[place - 1]}"
    for before, after in pairwise(hold for hold in by_began if not hold.is_empty):
        if history.exclusive and after.asked <= before.began and after.fence <= before.fence:
            yield f"{after.lock}: {after} after {before}"


def overtakings(holds: Sequence[Hold], history: "History") -> Iterator[str]:
    """Find clients that asked while another was certainly queued, and were granted the lock before
    it, by the order of fencing tokens. A waiter may be passed over while it is paused or its
    server is unreachable."""
    by_asked = sorted(holds, key=ASKED)
    first_from = list(accumulate(reversed(by_asked), partial(min, key=FENCE)))[::-1]
    for waited in holds:
        place = bisect(by_asked, waited.queued or math.inf, key=ASKED)
        first = first_from[place] if place < len(holds) else waited
        if first.fence < waited.fence and not history.was_paused(waited):
            yield f"{first.lock}: {first} before {waited}, queued at {waited.queued:.4f}"


def false_not_owned(history: "History") -> Iterator[str]:
    """Find holders that learned of a loss before the end of their lease."""
    for hold in history.holds:
        if hold.lost is not None and hold.lost_after < 0:
            yield f"{hold.lock}: {hold} reported as lost at {hold.lost:.4f}"


def phantoms(history: "History") -> Iterator[str]:
    """Find locks that are held by no client. A client that died while it waited may have been
    granted the lock once without knowing it."""
    died = Counter(wait.lock for wait in history.waits if wait.died)
    for event in history.of("stands"):
        lock = event["lock"]
        known = {hold.token for hold in history.by_lock[lock] if hold.released is None}
        if len({*event["tokens"]} - known) > died[lock]:
            yield str(event)


def times_until_free(history: "History") -> Iterator[float]:
    """Yield the seconds from each fault to the next holder, including the rest of a lease."""
    since = [(each["lock"], each["t"]) for each in history.of("free")]
    since += [
        (hold.lock, event["t"])
        for event in history.of("killed", "stopped")
        for hold in history.holds
        if hold.who == event["client"] and hold.began <= event["t"] < hold.gone
        if not hold.released or hold.lost is not None
    ]
    for lock, t in since:
        later = [each.began for each in history.by_lock.get(lock, ()) if each.began > t]
        if later:
            yield min(later) - t


def times_until_reported(history: "History") -> Iterator[float]:
    for hold in history.holds:
        if hold.lost is None or hold.is_empty or hold.ended < hold.lost:  # it was releasing
            continue
        if not history.stopped_in(hold.who, Span(hold.began, hold.lost)):
            yield hold.lost_after


# The history


class History:
    """Events, grouped into the waits and holds of clients."""

    def __init__(self, events: Sequence[Event], exclusive: bool = True) -> None:
        self.events = events
        self.exclusive = exclusive
        self.end = max((event["t"] for event in events), default=0.0)
        self._of = grouped(events, itemgetter("what"))
        self.dead = {each["client"]: each["dead"] for each in self.of("killed", "ended")}
        self._away = grouped(self.of("away", "back"), lambda event: event.get("lock"))
        self._stopped = grouped(self.of("stopped", "resumed"), itemgetter("client"))
        self.waits: list[Wait] = []
        by_token: dict[tuple[str, Any], Hold] = {}
        of_locks = [event for event in events if event.get("lock")]
        for (who, lock), own in grouped(of_locks, itemgetter("who", "lock")).items():
            dead = self.dead.get(who, math.inf)
            self.waits += _waits(who, lock, own, dead)
            by_token |= {(lock, hold.token): hold for hold in _holds(own, dead)}
        for event in events:
            if hold := by_token.get((event.get("lock"), event.get("token"))):
                _note(hold, event)
        self.holds = list(by_token.values())
        self.holds.sort(key=BEGAN)
        self.by_lock = grouped(self.holds, attrgetter("lock"))

    def of(self, *whats: str) -> list[Event]:
        found = [event for what in whats for event in self._of.get(what, ())]
        return sorted(found, key=TIME) if len(whats) > 1 else found

    def stopped_in(self, who: str, span: Span) -> bool:
        stops = spans(self._stopped.get(who, ()), "stopped", self.end, "t")
        return any(stop.meets(span) for stop in stops)

    def away(self, lock: str) -> list[Span]:
        """Return the periods in which the server of the lock was unreachable."""
        events = [*self._away[None], *self._away[lock]]
        return list(spans(events, "away", self.end, "t"))

    def was_paused(self, hold: Hold) -> bool:
        waited = Span(hold.asked, hold.began)
        away = any(span.meets(waited) for span in self.away(hold.lock))
        return away or self.stopped_in(hold.who, waited)


def _holds(events: Iterable[Event], dead: float) -> Iterator[Hold]:
    names = ("who", "lock", "token", "fence", "asked")
    queued: float | None = None
    for event in events:
        match event["what"]:
            case "want":
                queued = None
            case "queued":
                queued = event["t"]
            case "held":
                facts = {name: event[name] for name in names}
                yield Hold(began=event["t"], queued=queued, ended=dead, dead=dead, **facts)


def _note(hold: Hold, event: Event) -> None:
    """Apply an event to its hold. A client may learn of a renewal late, so the last one counts."""
    t = event["t"]
    match event["what"]:
        case "kept":
            hold.began = min(hold.began, t)
            hold.deadline = event["deadline"]
            hold.lease = max(hold.lease, hold.deadline - t)
        case "lost":
            hold.ended = min(hold.ended, t)
            _lose(hold, t)
        case "error":
            hold.released = t
            if event["type"] in NOT_OWNED:
                _lose(hold, t)
        case "release":
            hold.ended = min(hold.ended, t)
        case "checked":
            hold.looked = t
        case "released":
            hold.released = t


def _lose(hold: Hold, t: float) -> None:
    if hold.lost is None:
        hold.lost, hold.lost_after = t, t - hold.deadline


def _waits(who: str, lock: str, events: Iterable[Event], dead: float) -> Iterator[Wait]:
    is_waiting = False
    for event in events:
        what = event["what"]
        if what == "want":
            is_waiting = True
        elif what in ("held", "refused") or (what == "error" and event["during"] == "acquire"):
            if is_waiting:
                yield Wait(who, lock, died=False)
            is_waiting = False
    if is_waiting:
        yield Wait(who, lock, died=dead < math.inf)
