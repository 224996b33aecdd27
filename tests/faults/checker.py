"""Read a history and find violations. The checker does not know how the history was made.

A **belief** is the period in which a client may act on a lock. It starts when the client learns
that it holds the lock. It ends with the first of these: the client begins to release the lock,
learns that the lock is lost, its lease expires on its own clock (`lock.lost` becomes true), or it
dies. Beliefs that exceed the capacity of a lock at the same time are an **overlap**.

A **section** is what the client did, whatever its lease: the period from the return of `acquire`
until its code begins to release the lock, looks and sees that the lock is lost, or dies. A client
that was paused past its lease believes nothing any more, so its belief ends in time by definition,
but its section goes on, and it may write. Overlaps of sections are counted as well. The clock is
the same for all processes of the machine.

A write is **stale** if a later holder wrote before it. The order of holders follows from the times
at which clients acquired the lock, not from their fencing tokens, which may be wrong. If a client
learns of its acquisition while its lease lasts, its place in the order is known. If it learns of
it too late, because its process or server was paused, the acquisition is known only to lie between
the request and that moment.
"""

import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, compress, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from .events import Event, process_of

T = TypeVar("T")

FAULTS = ("killed", "stopped", "fault")
NOT_OWNED = ("LockNotOwnedError", "LockLost")

BEGAN, ASKED, FENCE = map(attrgetter, ("began", "asked", "fence"))
TIME = itemgetter("t")

WAKE_WITHIN_SECONDS = 3.0
"""Limit for the time that a lock may be free while a live waiter waits: waiters before it may have
died, or the server may have been unreachable."""

AT_ONCE = 1.0  # the same limit in seconds without such faults: the delay of a busy machine


@dataclass
class Hold:
    """One hold of a lock by a client."""

    who: str
    lock: str
    token: Any
    fence: int
    weight: int
    capacity: int
    asked: float
    began: float  # when the client learned of it
    queued: float | None = None  # when it was certainly queued, if it had to wait
    dead: float = math.inf  # when its client was certainly dead
    deadline: float = math.inf  # end of its lease on the client's clock, after the last renewal
    lease: float = 0.0  # longest lease in seconds that a renewal set
    looked: float = -math.inf  # last check at which the lock was held
    ended: float = math.inf  # when the client died, began to release, or learned of the loss
    entered: float = math.inf  # when `acquire` returned to the client's code
    left: float = math.inf  # when that code began to release or saw the loss, or the client died
    released: float | None = None  # when the release had certainly ended
    lost: float | None = None  # when the client first learned that the lock is lost or not owned
    lost_after: float = 0.0  # seconds from the lease's deadline at that time to `lost`
    taken: float = math.inf  # when it was force-released, if the event names this hold
    taken_before: bool = False  # whether it may have been taken before its client learned of it

    @property
    def until(self) -> float:
        """The end of the client's belief."""
        return max(min(self.ended, self.deadline), self.looked)

    @property
    def belief(self) -> "Span":
        return Span(self.began, self.until)

    @property
    def section(self) -> "Span":
        """What the client did."""
        return Span(self.entered, self.left)

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

    @property
    def is_known(self) -> bool:
        """Whether the server certainly had the hold when its client learned of it."""
        return not self.is_empty and not self.taken_before

    def __str__(self) -> str:
        return f"{self.who} ({self.fence}; {self.began:.4f} to {self.until:.4f})"


class Wait(NamedTuple):
    """One acquisition by a client, until it succeeded, was refused, failed, or the client died."""

    who: str
    lock: str
    weight: int
    capacity: int
    begin: float
    end: float
    died: bool  # whether the client died while it waited


class Span(NamedTuple):
    begin: float
    end: float

    def meets(self, other: "Span") -> bool:
        return self.begin < other.end and other.begin < self.end


@dataclass
class Findings:
    """Measurements of a history, and its violations."""

    holds: list[Hold]
    faults: list[Event]
    errors: list[Event]
    until_free: list[float]  # seconds from each fault of a holder to the next holder
    # Seconds from the beginning of a release until a queued waiter knew that it held the lock.
    handovers: list[float]
    # Seconds from the end of a lease until its holder learned of the loss; negative if it learned
    # of it before. Without holders that were paused, were releasing, or never believed.
    reported_after: list[float]
    overlaps: list[str] = field(default_factory=list)
    # Overlaps of sections. Only a fencing token protects against these.
    overlaps_of_sections: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    stale_without_fence: list[str] = field(default_factory=list)
    # Refused writes of the last holder.
    refused_in_turn: list[str] = field(default_factory=list)
    fences: list[str] = field(default_factory=list)  # fencing tokens that did not grow
    overtakings: list[str] = field(default_factory=list)
    lost_wakeups: list[str] = field(default_factory=list)
    not_owned: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def check(
    events: Sequence[Event], *, wake_within: float = WAKE_WITHIN_SECONDS, exclusive: bool = True
) -> Findings:
    """Find the violations. If locks are not `exclusive`, two clients can hold one at the same
    time. One then came later only if it asked while the other already held the lock."""
    history = History(events, exclusive)
    found = Findings(
        holds=history.holds,
        faults=history.of(*FAULTS),
        errors=history.of("error"),
        until_free=list(times_until_free(history)),
        handovers=list(handovers(history)),
        reported_after=list(times_until_reported(history)),
        not_owned=list(false_not_owned(history)),
        phantoms=list(phantoms(history)),
        doubles=list(map(str, history.of("double"))),
        leftovers=list(map(str, history.of("left"))),
    )
    for holds in history.by_lock.values():
        found.overlaps += overlaps(holds)
        found.overlaps_of_sections += overlaps(holds, attrgetter("section"))
        found.fences += fences_that_did_not_grow(holds, history)
        found.overtakings += overtakings(holds, history)
    found.lost_wakeups += lost_wakeups(history, wake_within)
    for taken, refused, without_fence in history.registers():
        found.stale += stale(taken, history)
        found.stale_without_fence += stale(without_fence, history)
        found.refused_in_turn += refused_in_turn(refused, history)
    return found


# Violations


def overlaps(
    holds: Iterable[Hold], span_of: Callable[[Hold], "Span"] = attrgetter("belief")
) -> Iterator[str]:
    inside: list[Hold] = []
    for hold in sorted(holds, key=span_of):
        span = span_of(hold)
        if span.end <= span.begin:
            continue
        inside = [each for each in inside if span_of(each).end > span.begin]
        if sum(each.weight for each in inside) + hold.weight > hold.capacity:
            yield f"{hold.lock}: {hold} while {', '.join(map(str, inside))}"
        inside.append(hold)


def fences_that_did_not_grow(holds: Sequence[Hold], history: "History") -> Iterator[str]:
    """Compare two holders if one asked while the other already held the lock, or if they cannot
    hold it together."""
    by_began = sorted(holds, key=BEGAN)
    greatest = list(accumulate(by_began, partial(max, key=FENCE)))
    for after in holds:
        place = bisect(by_began, after.asked, key=BEGAN)
        if place and greatest[place - 1].fence >= after.fence:
            yield f"{after.lock}: {after} after {greatest[place - 1]}"
    for before, after in pairwise(hold for hold in by_began if hold.is_known):
        alone = history.exclusive and before.weight + after.weight > after.capacity
        if alone and after.asked <= before.began and after.fence <= before.fence:
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


def lost_wakeups(history: "History", within: float) -> Iterator[str]:
    """Find waiters that waited too long for a free lock. The lock of a dead holder is free once
    its lease has expired; For the waiters, `times_until_free` counts from the death."""
    for wait in history.waits:
        if history.stopped_in(wait.who, Span(wait.begin, wait.end)):
            continue
        longest = max(_rooms(wait, history), default=0)
        if longest > within:
            yield f"{wait.lock}: {wait.who} waited for {longest:.2f} s while there was room"


def _rooms(wait: Wait, history: "History") -> Iterator[float]:
    """Yield the length of each period in which the lock had room for the waiter."""
    taken = [
        (Span(hold.asked if hold.is_empty else hold.began, hold.gone), hold.weight)
        for hold in history.overlapping(wait)
    ]
    taken += [(span, wait.capacity) for span in history.away(wait.lock)]
    steps = [(span.begin, weight) for span, weight in taken]
    steps += [(span.end, -weight) for span, weight in taken]
    used, free_since = 0, wait.begin
    for at, change in [*sorted(steps), (wait.end, 0)]:
        if at >= wait.end:
            break
        had_room = used + wait.weight <= wait.capacity
        used += change
        has_room = used + wait.weight <= wait.capacity
        if had_room and not has_room:
            yield at - free_since
        elif has_room and not had_room:
            free_since = max(at, wait.begin)
    if used + wait.weight <= wait.capacity:
        yield wait.end - free_since


def false_not_owned(history: "History") -> Iterator[str]:
    """Find holders that learned of a loss although the lock was not taken."""
    for hold in history.holds:
        if hold.lost is None or hold.lost_after >= 0:
            continue
        taken = (
            hold.asked <= each["t"] and each.get("since", each["t"]) <= hold.lost
            for each in history.of("taken")
            if each.get("lock") in (None, hold.lock) and "fence" not in each
        )
        if hold.taken > hold.lost and not any(taken):
            yield f"{hold.lock}: {hold} reported as lost at {hold.lost:.4f}"


def phantoms(history: "History") -> Iterator[str]:
    """Find locks that are held by no client. A client that died while it waited may have been
    granted the lock once without knowing it."""
    yield from map(str, history.of("phantom"))
    died = Counter(wait.lock for wait in history.waits if wait.died)
    for event in history.of("stands"):
        lock = event["lock"]
        known = {hold.token for hold in history.by_lock[lock] if hold.released is None}
        if len({*event["tokens"]} - known) > died[lock]:
            yield str(event)


def handovers(history: "History") -> Iterator[float]:
    for holds in history.by_lock.values():
        for hold in holds:
            place = bisect(holds, hold.ended, key=BEGAN)
            if hold.released is None or hold.lost is not None or place == len(holds):
                continue
            after = holds[place]
            alone = hold.weight + after.weight > hold.capacity
            if alone and after.queued is not None and after.queued < hold.ended:
                yield after.began - hold.ended


def times_until_free(history: "History") -> Iterator[float]:
    """Yield the seconds from each fault to the next holder, including the rest of a lease. See
    `lost_wakeups`."""
    since = [(each["lock"], each["t"]) for each in history.of("free")]
    since += [
        (hold.lock, event["t"])
        for event in history.of("killed", "stopped")
        for hold in history.holds
        if process_of(hold.who) == event["client"] and hold.began <= event["t"] < hold.gone
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


def stale(writes: Iterable[Event], history: "History") -> Iterator[str]:
    newest: Hold | None = None
    for event in writes:
        hold = history.hold_of(event)
        if newest and history.came_later(newest, hold):
            yield f"{hold.lock}: {hold} wrote at {event['t']:.4f}, after {newest}"
        else:
            newest = max(newest or hold, hold, key=history.earliest)


def refused_in_turn(writes: Iterable[Event], history: "History") -> Iterator[str]:
    for event in writes:
        hold = history.hold_of(event)
        others = (each for each in history.by_lock[hold.lock] if each is not hold)
        if all(history.came_later(hold, each) for each in others):
            yield f"{hold.lock}: {hold} at {event['t']:.4f}"


# The history


class History:
    """Events, grouped into the waits and holds of clients."""

    def __init__(self, events: Sequence[Event], exclusive: bool = True) -> None:
        self.events = events
        self.exclusive = exclusive
        self.end = max((event["t"] for event in events), default=0.0)
        self._of = _grouped(events, itemgetter("what"))
        self.dead = {each["client"]: each["dead"] for each in self.of("killed", "ended")}
        self._away = _grouped(self.of("away", "back"), lambda event: event.get("lock"))
        self._stopped = _grouped(self.of("stopped", "resumed"), itemgetter("client"))
        self.waits: list[Wait] = []
        by_token: dict[tuple[str, Any], Hold] = {}
        of_locks = [event for event in events if event.get("lock")]
        for (who, lock), own in _grouped(of_locks, itemgetter("who", "lock")).items():
            dead = self.dead.get(process_of(who), math.inf)
            self.waits += _waits(who, lock, own, dead, self.end)
            by_token |= {(lock, hold.token): hold for hold in _holds(own, dead)}
        for event in events:  # a process may have several clients, and log for all of them
            if hold := by_token.get((event.get("lock"), event.get("token"))):
                _note(hold, event)
        self.holds = list(by_token.values())
        last = {event["who"]: event["t"] for event in sorted(events, key=TIME)}
        for hold in self.holds:
            # A client that neither releases nor dies is inside at least until its last event.
            hold.left = min(hold.left, max(last[hold.who], hold.entered))
        for event in self.of("taken"):
            self._note_taken(event)
        self.holds.sort(key=BEGAN)
        self.by_lock = _grouped(self.holds, attrgetter("lock"))
        self._by_client = _grouped(self.holds, attrgetter("who", "lock"))
        self._gone = {
            lock: list(accumulate((hold.gone for hold in holds), max))
            for lock, holds in self.by_lock.items()
        }

    def of(self, *whats: str) -> list[Event]:
        found = [event for what in whats for event in self._of.get(what, ())]
        return sorted(found, key=TIME) if len(whats) > 1 else found

    def _note_taken(self, event: Event) -> None:
        taken = Span(event.get("since", event["t"]), event["t"])
        for hold in self.holds:
            if "fence" in event and event["fence"] != hold.fence:
                continue
            if event.get("lock") in (None, hold.lock):
                hold.taken = event["t"] if "fence" in event else hold.taken
                hold.taken_before |= hold.asked <= taken.end and taken.begin <= hold.began

    def came_later(self, one: Hold, other: Hold) -> bool:
        """Return whether `one` certainly acquired the lock later than `other`."""
        return self.earliest(one) > other.began

    def earliest(self, hold: Hold) -> float:
        """Return a time such that the hold came after every holder known before it."""
        return hold.began if self.exclusive and hold.is_known else hold.asked

    def hold_of(self, write: Event) -> Hold:
        """Return the client's last hold before the write."""
        own = self._by_client[write["who"], write["lock"]]
        place = bisect(own, write["t"], key=BEGAN)
        assert place, f"a write without a hold: {write}"
        return own[place - 1]

    def overlapping(self, wait: Wait) -> Iterator[Hold]:
        """Yield the holds that may have lasted at some time during `wait`."""
        holds = self.by_lock.get(wait.lock, [])
        place = bisect(holds, wait.end, key=BEGAN) - 1
        while place >= 0 and self._gone[wait.lock][place] > wait.begin:
            if holds[place].who != wait.who or holds[place].began < wait.begin:
                yield holds[place]
            place -= 1

    def stopped_in(self, who: str, span: Span) -> bool:
        stops = _spans(self._stopped.get(process_of(who), ()), "stopped", self.end)
        return any(stop.meets(span) for stop in stops)

    def away(self, lock: str) -> list[Span]:
        """Return the periods in which the server of the lock was unreachable."""
        events = [*self._away[None], *self._away[lock]]
        return list(_spans(sorted(events, key=TIME), "away", self.end))

    def was_paused(self, hold: Hold) -> bool:
        waited = Span(hold.asked, hold.began)
        away = any(span.meets(waited) for span in self.away(hold.lock))
        return away or self.stopped_in(hold.who, waited)

    def registers(self) -> Iterator[tuple[list[Event], list[Event], list[Event]]]:
        """Yield for each register, in order: the writes that the fence accepted, the writes that
        it refused, and the writes that would happen without it. A file of attempts has both kinds:
        its fence accepts a write unless a greater token stands before it."""
        registers = _grouped(
            self.of("write"), lambda event: (event["lock"], event.get("register", "attempts"))
        )
        for (_, register), writes in registers.items():
            writes.sort(key=itemgetter("place"))
            plain, fenced = writes, writes
            if register == "attempts":
                greatest = accumulate((each["fence"] for each in writes), max)
                accepted = [
                    each["fence"] >= most for each, most in zip(writes, greatest, strict=True)
                ]
            else:
                plain = [each for each in writes if not each["fenced"]]
                fenced = [each for each in writes if each["fenced"]]
                accepted = [each["accepted"] for each in fenced]
            yield (
                list(compress(fenced, accepted)),
                [each for each, taken in zip(fenced, accepted, strict=True) if not taken],
                plain,
            )


def _grouped(items: Iterable[T], key: Callable[[T], Any]) -> defaultdict[Any, list[T]]:
    found: defaultdict[Any, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def _spans(events: Iterable[Event], begins: str, end: float) -> Iterator[Span]:
    begin = None
    for event in events:
        if event["what"] == begins:
            begin = event["t"] if begin is None else begin
        elif begin is not None:
            yield Span(begin, event["t"])
            begin = None
    if begin is not None:
        yield Span(begin, end)


def _holds(events: Iterable[Event], dead: float) -> Iterator[Hold]:
    names = ("who", "lock", "token", "fence", "weight", "capacity", "asked")
    queued: float | None = None
    hold: Hold | None = None
    for event in events:
        match event["what"]:
            case "want":
                queued = None
                if hold:  # its code has moved on, even if it never released
                    hold.left = min(hold.left, event["t"])
            case "queued":
                queued = event["t"]
            case "held":
                facts = {name: event[name] for name in names}
                facts |= {"entered": event["t"], "left": dead}
                hold = Hold(began=event["t"], queued=queued, ended=dead, dead=dead, **facts)
                yield hold


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
            if event.get("seen"):
                hold.left = min(hold.left, t)
            _lose(hold, t)
        case "error":
            hold.released = t
            if event["type"] in NOT_OWNED:
                _lose(hold, t)
        case "release":
            hold.ended = min(hold.ended, t)
            hold.left = min(hold.left, t)
        case "checked":
            hold.looked = t
        case "released":
            hold.released = t


def _lose(hold: Hold, t: float) -> None:
    if hold.lost is None:
        hold.lost, hold.lost_after = t, t - hold.deadline


def _waits(
    who: str, lock: str, events: Iterable[Event], dead: float, end: float
) -> Iterator[Wait]:
    begun: tuple[int, int, float] | None = None
    for event in events:
        what = event["what"]
        if what == "want":
            begun = event["weight"], event["capacity"], event["t"]
        elif what in ("held", "refused") or (what == "error" and event["during"] == "acquire"):
            if begun:
                yield Wait(who, lock, *begun, event["t"], died=False)
            begun = None
    if begun:
        yield Wait(who, lock, *begun, min(dead, end), died=dead < math.inf)
