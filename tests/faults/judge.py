"""Judge from outside: what did the clients do?

The judge reads when each client entered and left its critical section, and what it wrote to a
register. It knows nothing of leases, renewals, queues or the package. All times are by one clock,
CLOCK_MONOTONIC of the machine.

A **section** begins when `acquire` has returned to the client's code. It ends when that code
begins to release, when it looks at the lock, sees the loss and stops, or when its process is dead.
A process that is paused stays inside.

- An **overlap**: a client entered while another one was inside. If one of them was paused then,
  the overlap is reported as that of a paused holder.
- A write is **stale** if a client that entered later has written before it.
- A write is **refused in turn** if the register refused it, although no client had entered later.
- A client **waits in vain** if it asks for a lock that nobody is inside of, for too long. After a
  death the judge does not know when the lock is free again.

If two clients may hold a lock at a time (it is not `exclusive`), the one that entered later may
have acquired it before. Then it is known to be the later one only if it asked after the other had
entered.
"""

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from .events import Event

T = TypeVar("T")

WAKE_WITHIN_SECONDS = 3.0
"""Limit for the time that a lock may be free while a client asks for it: others before it may have
died, or the server may have been unreachable."""

RELEASED = "released"
LOOKED = "looked"
DIED = "died"


class Span(NamedTuple):
    begin: float
    end: float

    def meets(self, other: "Span") -> bool:
        return self.begin < other.end and other.begin < self.end


@dataclass
class Section:
    """One stay of a client in its critical section."""

    who: str
    lock: str
    fence: int
    asked: float
    entered: float
    left: float = math.inf
    how: str = ""
    """How it ended: `RELEASED`, `LOOKED` or `DIED`. Or "" if it never ended."""

    free: float = math.inf
    """From when others can enter: when the release has returned, or after a look."""

    @property
    def span(self) -> Span:
        return Span(self.entered, self.left)

    def __str__(self) -> str:
        return f"{self.who} (token {self.fence}; {self.entered:.4f} to {self.left:.4f})"


class Ask(NamedTuple):
    """The time in which a client asked for a lock and was not let in."""

    who: str
    lock: str
    begin: float
    end: float


@dataclass
class Verdict:
    """What the clients did that they should not have done."""

    overlaps: list[str] = field(default_factory=list)
    """Overlaps in which nobody was paused."""

    paused: list[str] = field(default_factory=list)
    """Overlaps of a holder that was paused inside."""

    stale: list[str] = field(default_factory=list)
    """Stale writes that a register with fencing tokens accepted."""

    stale_without_fence: list[str] = field(default_factory=list)
    """Stale writes that were tried: a register without tokens accepts them."""

    refused_in_turn: list[str] = field(default_factory=list)
    waits_in_vain: list[str] = field(default_factory=list)

    stopped_by_token: int = 0
    """Stale writes that a register refused because of their token."""

    stopped_by_look: int = 0
    """Clients that looked before a write, and left while another one had entered."""

    @property
    def all_overlaps(self) -> list[str]:
        return [*self.overlaps, *self.paused]


def judge(
    events: Sequence[Event],
    *,
    within: float = WAKE_WITHIN_SECONDS,
    exclusive: bool = True,
) -> Verdict:
    """Judge a history.

    Args:
        events: What the processes logged, in any order.
        within: Seconds that a lock may be free while a client asks for it.
        exclusive: Whether clients that do not fit in together never acquire it at the same time.
    """
    history = History(events, exclusive)
    verdict = Verdict()
    for sections in history.by_lock.values():
        for text, is_paused in overlaps(sections, history):
            (verdict.paused if is_paused else verdict.overlaps).append(text)
    for writes in history.registers():
        judge_writes(writes, history, verdict)
    verdict.stopped_by_look = sum(came_too_late(each, history) for each in history.sections)
    verdict.waits_in_vain += waits_in_vain(history, within)
    return verdict


def overlaps(sections: Iterable[Section], history: "History") -> Iterator[tuple[str, bool]]:
    """Yield each overlap, and whether somebody was paused inside."""
    inside: list[Section] = []
    for section in sorted(sections, key=lambda each: each.entered):
        if section.left <= section.entered:
            continue
        inside = [each for each in inside if each.left > section.entered]
        if inside:
            others = ", ".join(map(str, inside))
            before = [(each.who, Span(each.entered, section.entered)) for each in inside]
            before.append((section.who, Span(section.asked, section.entered)))
            is_paused = any(history.was_paused(who, span) for who, span in before)
            yield f"{section.lock}: {section} entered while {others}", is_paused
        inside.append(section)


def judge_writes(writes: Sequence["Write"], history: "History", verdict: Verdict) -> None:
    """Judge the writes to one register, in their order."""
    newest: Section | None = None  # of all attempts
    newest_accepted: Section | None = None
    for write in writes:
        section = write.section
        is_stale = newest is not None and history.came_later(newest, section)
        about = f"{section.lock}: {section} wrote at {write.at:.4f}, after {newest}"
        if is_stale:
            verdict.stale_without_fence.append(about)
        if write.is_accepted:
            if newest_accepted and history.came_later(newest_accepted, section):
                verdict.stale.append(about)
            elif not newest_accepted or section.entered > newest_accepted.entered:
                newest_accepted = section
        elif is_stale:
            verdict.stopped_by_token += 1
        elif history.is_last(section, write.at):
            verdict.refused_in_turn.append(f"{section.lock}: {section} at {write.at:.4f}")
        if not is_stale and (newest is None or section.entered > newest.entered):
            newest = section


def came_too_late(section: Section, history: "History") -> bool:
    """Return whether the section ended because its client saw that another one had the lock."""
    others = history.by_lock[section.lock]
    return section.how == LOOKED and any(
        section.entered < each.entered < section.left for each in others
    )


def waits_in_vain(history: "History", within: float) -> Iterator[str]:
    for ask in history.asks:
        if history.was_paused(ask.who, Span(ask.begin, ask.end)):
            continue
        longest = max(rooms(ask, history), default=0)
        if longest > within:
            yield f"{ask.lock}: {ask.who} asked for {longest:.2f} s while there was room"


def rooms(ask: Ask, history: "History") -> Iterator[float]:
    """Yield the length of each period in which nobody was inside, and the server reachable."""
    taken = [Span(each.entered, each.free) for each in history.inside(ask)]
    free_since = ask.begin
    for span in sorted([*taken, *history.away(ask.lock), Span(ask.end, ask.end)]):
        yield min(span.begin, ask.end) - free_since
        free_since = max(free_since, span.end)


@dataclass(frozen=True)
class Write:
    """An attempt to write to a register."""

    at: float
    section: Section

    is_accepted: bool
    """Whether the register accepts its token. Without tokens it accepts every write."""


class History:
    """What the clients did, grouped into sections."""

    def __init__(self, events: Sequence[Event], exclusive: bool) -> None:
        self.exclusive = exclusive
        known = [event for event in events if "at" in event]
        self._events = sorted(known, key=lambda event: event["at"])
        self.end = self._events[-1]["at"] if self._events else 0.0
        deaths = [each for each in self._events if each["what"] in ("killed", "ended")]
        self._dead = {each["client"]: each["at"] for each in deaths}
        self._outages = [each for each in self._events if each["what"] in ("away", "back")]
        pauses = [each for each in self._events if each["what"] in ("stopped", "resumed")]
        self._pauses = grouped(pauses, itemgetter("client"))
        self.sections: list[Section] = []
        self.asks: list[Ask] = []
        self._last = {event["who"]: event["at"] for event in self._events}
        of_locks = [event for event in self._events if event.get("lock")]
        for (who, lock), own in grouped(of_locks, itemgetter("who", "lock")).items():
            self._read(who, lock, own)
        self._end_open_sections()
        self.sections.sort(key=lambda each: each.entered)
        self.by_lock = grouped(self.sections, lambda each: each.lock)
        self._by_client = grouped(self.sections, lambda each: (each.who, each.lock))

    def _read(self, who: str, lock: str, events: Iterable[Event]) -> None:
        """Read what one client did with one lock."""
        asked: Event | None = None
        section: Section | None = None
        for event in events:
            at = event["at"]
            match event["what"]:
                case "want":
                    asked = event
                    if section and not section.how:  # its code has moved on
                        section.left = min(section.left, at)
                case "enter":
                    begun = asked["at"] if asked else at
                    section = Section(who, lock, event["fence"], asked=begun, entered=at)
                    self.sections.append(section)
                    self._note_ask(asked, at)
                    asked = None
                case "leave" if section and not section.how:
                    section.how = event["how"]
                    section.left = min(section.left, at)
                    section.free = at if section.how == LOOKED else section.free
                case "released" if section:
                    section.free = min(section.free, at)
                case "error" if section and event["during"] == "release":
                    section.free = min(section.free, at)
                case "refused":
                    self._note_ask(asked, at)
                    asked = None
                case "error" if event["during"] == "acquire":
                    self._note_ask(asked, at)
                    asked = None
        self._note_ask(asked, min(self._dead.get(who, math.inf), self.end))

    def _note_ask(self, asked: Event | None, end: float) -> None:
        if asked:
            self.asks.append(Ask(asked["who"], asked["lock"], asked["at"], end))

    def _end_open_sections(self) -> None:
        for section in self.sections:
            dead = self._dead.get(section.who, math.inf)
            if section.how:
                continue
            if dead < section.left:
                section.left, section.how = dead, DIED
            elif section.left == math.inf:
                # A client that neither leaves nor dies is inside at least until its last event.
                section.left = max(self._last[section.who], section.entered)

    def came_later(self, one: Section, other: Section) -> bool:
        """Return whether `one` certainly acquired the lock later than `other`."""
        return (one.entered if self.exclusive else one.asked) > other.entered

    def is_last(self, section: Section, at: float) -> bool:
        """Return whether all others that have entered until `at` certainly came before."""
        others = (each for each in self.by_lock[section.lock] if each is not section)
        return all(self.came_later(section, each) for each in others if each.entered <= at)

    def was_paused(self, who: str, span: Span) -> bool:
        pauses = spans(self._pauses[who], "stopped", self.end)
        return any(pause.meets(span) for pause in pauses)

    def away(self, lock: str) -> list[Span]:
        """Return the periods in which the server of the lock was unreachable."""
        own = [each for each in self._outages if each.get("lock") in (None, lock)]
        return list(spans(own, "away", self.end))

    def inside(self, ask: Ask) -> Iterator[Section]:
        """Yield the sections that the lock may have been taken by while the client asked."""
        for section in self.by_lock.get(ask.lock, ()):
            if section.entered >= ask.end:
                return
            if section.free > ask.begin and (section.who != ask.who or section.left < ask.begin):
                yield section

    def registers(self) -> Iterator[list[Write]]:
        """Yield the attempts to write to each register, in order. The fence accepts one unless a
        greater token stands before it."""
        writes = [event for event in self._events if event["what"] == "write"]
        for events in grouped(writes, itemgetter("lock")).values():
            events.sort(key=itemgetter("place"))
            greatest = accumulate((each["fence"] for each in events), max)
            yield [
                Write(event["at"], self._section_of(event), event["fence"] >= most)
                for event, most in zip(events, greatest, strict=True)
            ]

    def _section_of(self, write: Event) -> Section:
        """Return the client's last section that began before the write."""
        own = self._by_client[write["who"], write["lock"]]
        place = bisect(own, write["at"], key=lambda each: each.entered)
        assert place, f"a write outside of a section: {write}"
        return own[place - 1]


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> defaultdict[Any, list[T]]:
    found: defaultdict[Any, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def spans(events: Iterable[Event], begins: str, end: float, clock: str = "at") -> Iterator[Span]:
    """Yield the times from each event `begins` to the next other event, or to `end`."""
    begin = None
    for event in sorted(events, key=itemgetter(clock)):
        if event["what"] == begins:
            begin = event[clock] if begin is None else begin
        elif begin is not None:
            yield Span(begin, event[clock])
            begin = None
    if begin is not None:
        yield Span(begin, end)
