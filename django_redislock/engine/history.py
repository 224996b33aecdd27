"""Read the history: holds that ended, acquisitions that were refused, and event rates."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from ..conf import conf
from ..identity import read_info
from ..keys import BUCKETS, Keys
from ..lua import HISTORY
from ..names import check_name
from ..snapshots import Event, Rates
from ..text import printable
from .operations import Batch, Call, Flow
from .parsing import moment, number, pairs, parse_holder, parse_or_none, parse_reply, seconds
from .store import REPLY_TIMEOUT_SECONDS

RATES = ("acquired", "refused", "expired", "forced", "lost")
RATE_MINUTES = 60
MINUTE_MS = 60_000

MIN_ENTRIES = 10
"""Entries of a stream that the first round trip reads, even if fewer are needed."""

MAX_ENTRIES = 192
"""Entries that one round trip reads at most. The server serves no other client during a script."""

FULL = 0.9
"""The part of ``REDISLOCK_HISTORY`` from which a stream may have dropped entries."""

Entry: TypeAlias = dict[str, str]
"""The fields of one entry of a stream."""


@dataclass(slots=True)
class EventStream:
    """The events of one stream of a bucket, as far as they were read."""

    bucket: int
    name: str

    max_age: timedelta | None
    """Older events are not needed. None: all are."""

    max_events: int
    """The number of events that are needed."""

    cursor: str = "+"
    """The script's cursor of the next entries. Empty if no more are needed."""

    events: list[Event] = field(default_factory=list)
    """The events, the newest first."""

    length: int = 0
    """How many entries the server has."""

    oldest: datetime | None = None
    """When the oldest event happened that the server has."""

    @property
    def is_full(self) -> bool:
        return len(self.events) >= self.max_events

    def add(self, reply: str | bytes) -> None:
        """Add the part of the stream that the script returned."""
        cursor, entries, self.length, oldest = parse_reply(reply)
        self.oldest = parse_or_none(_time, oldest)
        parsed = (parse_or_none(STREAMS[self.name], pairs(entry)) for entry in entries)
        self.events += filter(None, parsed)
        del self.events[self.max_events :]
        self.cursor = "" if self.is_full else cursor


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
        matches: Returns whether an event is wanted. Then all events are read, bucket by bucket.
        age: The age of the oldest events; None means all.
    """
    events: list[Event] = []

    def add(stream: EventStream) -> None:
        found = filter(matches, stream.events) if matches else stream.events
        events[:] = _newest_first([*events, *found])[:limit]

    buckets = range(BUCKETS) if name is None else [keys.of(name).bucket]
    ages = {} if age is None else dict.fromkeys(STREAMS, age)
    wanted = sys.maxsize if matches else limit
    entries = max(wanted, MIN_ENTRIES)
    yield from _read(keys, buckets, ages, wanted, add, name=name or "", max_entries=entries)
    return tuple(events)


def recent(keys: Keys, age: timedelta, broken_age: timedelta, max_events: int) -> Flow[Recent]:
    """Return the events of all locks up to an age.

    Args:
        keys: The keys.
        age: The age of the oldest events.
        broken_age: The same for holds that did not end as intended.
        max_events: The number of events to read from each stream of a bucket, the newest first.
    """
    events: list[Event] = []
    oldest: list[datetime] = []
    complete_since: list[datetime] = []

    def add(stream: EventStream) -> None:
        if stream.oldest:
            oldest.append(stream.oldest)
            if stream.length >= conf.history * FULL:
                complete_since.append(stream.oldest)
        if stream.is_full:
            complete_since.append(stream.events[-1].at)
        events.extend(stream.events)

    ages = {"ended": age, "broken": broken_age, "refused": age}
    yield from _read(keys, range(BUCKETS), ages, max_events, add, is_brief=True)
    return Recent(
        tuple(_newest_first(events)),
        min(oldest, default=None),
        max(complete_since, default=None),
    )


def rates(keys: Keys) -> Flow[Rates]:
    """Return the number of events of all locks in each of the last 60 minutes."""
    args = ("rates", "", 0, "", "", 0, conf.history)
    calls = [Call(HISTORY, keys.inspect(bucket), args) for bucket in range(BUCKETS)]
    replies = list(map(parse_reply, (yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS))))
    first = max(int(now) for now, _ in replies) // MINUTE_MS - RATE_MINUTES + 1
    counts = {what: [0] * RATE_MINUTES for what in RATES}
    for _, flat in replies:
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


def _read(
    keys: Keys,
    buckets: Iterable[int],
    ages: Mapping[str, timedelta],
    max_events: int,
    add: Callable[[EventStream], None],
    *,
    name: str = "",
    max_entries: int = MAX_ENTRIES,
    is_brief: bool = False,
) -> Flow[None]:
    """Read the streams of each bucket: a part of all streams in the first round trip, then stream
    by stream. `ages` has the age of the oldest events of each stream, unless all are needed. `add`
    gets each stream after it was read. The stream is deleted then, because all of them together
    take much memory."""

    def read_next(some: Sequence[EventStream]) -> Flow[None]:
        limit = min(MAX_ENTRIES // len(some), max_entries)
        calls = []
        for each in some:
            age = "" if each.max_age is None else round(each.max_age.total_seconds() * 1000)
            args = (each.name, name, limit, each.cursor, age, int(not is_brief), conf.history)
            calls.append(Call(HISTORY, keys.inspect(each.bucket), args))
        replies = yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS)
        for each, reply in zip(some, replies, strict=True):
            each.add(reply)

    streams = [
        EventStream(bucket, stream, ages.get(stream), max_events)
        for bucket in buckets
        for stream in STREAMS
    ]
    yield from read_next(streams)
    while streams:
        stream = streams.pop()
        while stream.cursor:
            yield from read_next([stream])
        add(stream)


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
        _event(entry, printable(entry["how"]), record.info, record.weight, record.waited),
        acquired_at=acquired_at,
        held=(_time(entry["at"]) - acquired_at).total_seconds(),
        fence_token=record.fence_token,
    )


def _refused(entry: Entry) -> Event:
    info = entry["info"]
    outcome = "skipped" if read_info(info).on_conflict == "skip" else "refused"
    return _event(entry, outcome, info, number(entry["weight"]), number(entry["waited"]))


def _event(entry: Entry, outcome: str, info_text: str, weight: int = 0, waited: int = 0) -> Event:
    """Return an event without a hold."""
    info = read_info(info_text)
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
        holder=info.holder,
        metadata=info.metadata,
    )


STREAMS: dict[str, Callable[[Entry], Event]] = {
    "ended": _ended,
    "broken": _ended,
    "refused": _refused,
}
"""The streams of a bucket, and what parses their entries."""
