"""Read the history: holds that ended, acquisitions that were refused, and event rates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import TypeAlias

from ..conf import conf
from ..identity import parse_payload
from ..keys import Keys
from ..lua import HISTORY
from ..names import check_name
from ..snapshots import Event, Rates
from ..text import printable
from .operations import Batch, Call, Flow
from .parsing import (
    moment,
    number,
    pairs,
    parse_holder,
    parse_or_none,
    parse_replies,
    seconds,
    valid_reply,
)
from .timing import REPLY_TIMEOUT_SECONDS

RATES = ("acquired", "refused", "expired", "forced", "lost", "killed")
RATE_MINUTES = 60
MINUTE_MS = 60_000

MAX_ENTRIES = 192
"""Entries that one round trip reads at most. The server serves no other client during a script."""

FULL = 0.9
"""The part of ``REDISLOCK_HISTORY`` from which a stream may have dropped entries."""

Entry: TypeAlias = dict[str, str]
"""The fields of one entry of a stream."""


@dataclass(slots=True)
class EventStream:
    """The events of one stream, as far as they were read."""

    keys: Keys
    name: str

    max_age: timedelta | None
    """Older events are not needed. None: all are."""

    max_events: int
    """The number of events that are needed."""

    lock_name: str = ""
    """The lock whose events are needed, or "" for all locks."""

    has_metadata: bool = True
    """Whether the events have their metadata."""

    matches: Callable[[Event], bool] | None = None
    """Returns whether an event is needed. None: all are."""

    cursor: str = "+"
    """The script's cursor of the next entries. Empty if no more are needed."""

    events: list[Event] = field(default_factory=list)
    """The events that are needed, the newest first."""

    length: int = 0
    """How many entries the server has."""

    oldest: datetime | None = None
    """When the oldest event happened that the server has."""

    @property
    def is_full(self) -> bool:
        return len(self.events) >= self.max_events

    def next_part(self, entries: int) -> Call:
        """Return the call that reads the next entries."""
        age = "" if self.max_age is None else round(self.max_age.total_seconds() * 1000)
        what = self.name, self.lock_name, entries, self.cursor, age, int(self.has_metadata)
        return Call(HISTORY, self.keys.all, (*what, conf.history), limit=REPLY_TIMEOUT_SECONDS)

    def add(self, reply: bytes) -> None:
        """Add the part of the stream that the script returned."""
        [parsed] = parse_replies([reply])
        with valid_reply():
            cursor, entries, self.length, oldest = parsed
            self.oldest = parse_or_none(_time, oldest)
            parsed_events = [parse_or_none(STREAMS[self.name], pairs(each)) for each in entries]
        self.events += filter(self.matches, filter(None, parsed_events))
        del self.events[self.max_events :]
        self.cursor = "" if self.is_full else cursor

    def read_rest(self) -> Flow[None]:
        """Read what is still needed."""
        while self.cursor:
            self.add((yield self.next_part(MAX_ENTRIES)))


@dataclass(frozen=True, slots=True)
class Recent:
    """Recent events of all locks."""

    events: tuple[Event, ...]
    """The events without metadata, the newest first."""

    oldest: datetime | None
    """When the oldest of all stored events happened, also of those that were not read."""

    complete_since: datetime | None
    """No event since then was dropped or left out. None if none ever was."""


def history(
    keys: Keys,
    name: str | None,
    limit: int,
    *,
    matches: Callable[[Event], bool] | None = None,
    age: timedelta | None = None,
) -> Flow[tuple[Event, ...]]:
    """Return the latest events, the newest first.

    Args:
        keys: The keys.
        name: The name of a lock; None means all.
        limit: The maximum number of events.
        matches: Returns whether an event is wanted. None: all are.
        age: The age of the oldest events; None means all.
    """
    streams = [
        EventStream(keys, stream, age, limit, name or "", matches=matches) for stream in STREAMS
    ]
    yield from _read_first_parts(streams)
    events: list[Event] = []
    while streams:
        stream = streams.pop()  # all streams together take much memory
        yield from stream.read_rest()
        events = _newest_first([*events, *stream.events])[:limit]
    return tuple(events)


def recent(keys: Keys, age: timedelta, broken_age: timedelta, max_events: int) -> Flow[Recent]:
    """Return the events of all locks up to an age.

    Args:
        keys: The keys.
        age: The age of the oldest events.
        broken_age: The same for holds that did not end as intended.
        max_events: The number of events to read from each stream, the newest first.
    """
    ages = {"ended": age, "broken": broken_age, "refused": age}
    streams = [
        EventStream(keys, stream, ages[stream], max_events, has_metadata=False)
        for stream in STREAMS
    ]
    yield from _read_first_parts(streams)
    for stream in streams:
        yield from stream.read_rest()
    full = conf.history * FULL
    gaps = [each.oldest for each in streams if each.oldest and each.length >= full]
    gaps += [each.events[-1].at for each in streams if each.is_full]
    return Recent(
        tuple(_newest_first(chain.from_iterable(each.events for each in streams))),
        min((each.oldest for each in streams if each.oldest), default=None),
        max(gaps, default=None),
    )


def rates(keys: Keys) -> Flow[Rates]:
    """Return the number of events of all locks in each of the last 60 minutes."""
    args = ("rates", "", 0, "", "", 0, conf.history)
    reply = yield Call(HISTORY, keys.all, args, limit=REPLY_TIMEOUT_SECONDS)
    [parsed] = parse_replies([reply])
    counts = {what: [0] * RATE_MINUTES for what in RATES}
    with valid_reply():
        now, flat = parsed
        first = int(now) // MINUTE_MS - RATE_MINUTES + 1
        for key, times in pairs(flat).items():
            minute, _, what = key.partition(" ")
            place = (parse_or_none(number, minute) or 0) - first
            if what in counts and 0 <= place < RATE_MINUTES:
                counts[what][place] += parse_or_none(number, times) or 0
        start = moment(first * MINUTE_MS)
    return Rates(
        minutes=tuple(start + timedelta(minutes=place) for place in range(RATE_MINUTES)),
        counts={what: tuple(each) for what, each in counts.items()},
    )


def _read_first_parts(streams: Sequence[EventStream]) -> Flow[None]:
    """Read some entries of all streams in one round trip."""
    calls = tuple(each.next_part(MAX_ENTRIES // len(streams)) for each in streams)
    replies = yield Batch(calls, REPLY_TIMEOUT_SECONDS)
    for stream, reply in zip(streams, replies, strict=True):
        stream.add(reply)


def _newest_first(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.at, event.fence_token or 0), reverse=True)


def _time(ms: str) -> datetime:
    return moment(number(ms))


def _ended(entry: Entry) -> Event:
    if not entry["holder"]:  # a loss whose hold is not known
        return _event(entry, "lost", "")
    record = parse_holder(entry["holder"])
    acquired_at = moment(record.acquired)
    return replace(
        _event(entry, printable(entry["how"]), record.payload, record.weight, record.waited),
        acquired_at=acquired_at,
        held=max(0.0, (_time(entry["at"]) - acquired_at).total_seconds()),
        fence_token=record.fence_token,
        by=printable(entry.get("by", "")),
        reason=printable(entry.get("reason", "")),
    )


def _refused(entry: Entry) -> Event:
    payload = entry["info"]
    is_duplicate = entry.get("duplicate") != "0"
    skips = is_duplicate and parse_payload(payload).on_conflict == "skip"
    outcome = "skipped" if skips else "refused"
    return _event(entry, outcome, payload, number(entry["weight"]), number(entry["waited"]))


def _event(entry: Entry, outcome: str, text: str, weight: int = 0, waited: int = 0) -> Event:
    """Return an event without a hold."""
    payload = parse_payload(text)
    return Event(
        name=check_name(entry["name"]),
        kind=printable(entry["kind"]),
        outcome=outcome,
        at=_time(entry["at"]),
        acquired_at=None,
        waited=seconds(waited),
        held=0.0,
        fence_token=None,
        weight=weight,
        holder=payload.holder,
        metadata=payload.metadata,
    )


STREAMS: dict[str, Callable[[Entry], Event]] = {
    "ended": _ended,
    "broken": _ended,
    "refused": _refused,
}
"""The streams, and what parses their entries."""
