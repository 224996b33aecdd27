"""Read the history: holds that ended, acquisitions that were refused, and event rates."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

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

Hold: TypeAlias = tuple[str, str | None]
"""The name of a lock and the token of its holder."""


@dataclass(slots=True)
class EventStream:
    """The events of one stream of a bucket, as far as they were read."""

    parse: Callable[[Entry], Event]

    max_age: timedelta | None
    """Older events are not needed. None: all are."""

    max_events: int
    """The number of events that are needed."""

    cursor: str = "+"
    """The script's cursor of the next entries. Empty if no more are needed."""

    found: list[tuple[Hold, Event]] = field(default_factory=list)
    """The events, the newest first."""

    count: int = 0
    """How many events there are. A loss without its hold does not count."""

    open_losses: set[Hold] = field(default_factory=set)
    """The losses whose hold is still to be read. A holder that releases a lost lock records the
    loss only, perhaps long after the lease expired."""

    length: int = 0
    """How many entries the server has."""

    oldest: datetime | None = None
    """When the oldest event happened that the server has."""

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_events

    def next_part(self) -> tuple[str, int | str]:
        """Return the arguments by which a script returns the next part of the stream."""
        age = self.max_age
        return self.cursor, "" if age is None else round(age.total_seconds() * 1000)

    def add(self, reply: Any) -> None:
        """Add the part of the stream that a script returned."""
        has_more, cursor, entries, self.length, oldest = reply
        self.oldest = parse_or_none(_time, pairs(oldest))
        for entry in map(pairs, entries):
            if event := parse_or_none(self.parse, entry):
                self._add((event.name, entry.get("token")), event)
        if not has_more and self.open_losses and self.max_age is not None:
            self.max_age, has_more = None, True
        is_done = not has_more or (self.is_full and not self.open_losses)
        self.cursor = "" if is_done else cursor

    def _add(self, hold: Hold, event: Event) -> None:
        if self.is_full and hold not in self.open_losses:
            return
        self.found.append((hold, event))
        if _is_bare_loss(event):
            self.open_losses.add(hold)
        else:
            self.open_losses.discard(hold)
            self.count += 1

    def events(self) -> list[Event]:
        """Return the events, the newest first. A loss is joined with its hold, which ended before
        the holder noticed."""
        events: list[Event] = []
        places: dict[Hold, int] = {}
        for hold, event in reversed(self.found):
            place = places.get(hold)
            if place is None or not _is_bare_loss(event):
                places[hold] = len(events)
                events.append(event)
            elif events[place].outcome == "expired":
                events[place] = replace(events[place], outcome="lost")
        return events[::-1]


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
        found = filter(matches, stream.events()) if matches else stream.events()
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
            _, last = stream.found[-1]
            complete_since.append(last.at)
        events.extend(stream.events())

    ages = {"ended": age, "broken": broken_age, "refused": age}
    yield from _read(keys, range(BUCKETS), ages, max_events, add, is_brief=True)
    return Recent(
        tuple(_newest_first(events)),
        min(oldest, default=None),
        max(complete_since, default=None),
    )


def rates(keys: Keys) -> Flow[Rates]:
    """Return the number of events of all locks in each of the last 60 minutes."""
    skipped = [""] * (2 * len(STREAMS))
    args: tuple[str | int, ...] = ("", 0, 0, *skipped, conf.history)
    calls = [Call(HISTORY, keys.inspect(bucket), args) for bucket in range(BUCKETS)]
    replies = list(map(parse_reply, (yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS))))
    first = max(int(now) for now, *_ in replies) // MINUTE_MS - RATE_MINUTES + 1
    counts = {what: [0] * RATE_MINUTES for what in RATES}
    for *_, flat in replies:
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
    """Read the streams of each bucket: a part of all buckets in the first round trip, then bucket
    by bucket. `ages` has the age of the oldest events of each stream, unless all are needed. `add`
    gets each stream after it was read. The stream is deleted then, because all of them together
    take much memory."""
    streams = {
        bucket: [EventStream(parse, ages.get(key), max_events) for key, parse in STREAMS.items()]
        for bucket in buckets
    }

    def read_next(some: dict[int, list[EventStream]]) -> Flow[None]:
        limit = min(MAX_ENTRIES // (len(STREAMS) * len(some)), max_entries)
        calls = []
        for bucket, its_streams in some.items():
            wanted = [each for stream in its_streams for each in stream.next_part()]
            args = (name, limit, int(is_brief), *wanted, conf.history)
            calls.append(Call(HISTORY, keys.inspect(bucket), args))
        replies = yield Batch(tuple(calls), REPLY_TIMEOUT_SECONDS)
        for its_streams, reply in zip(some.values(), replies, strict=True):
            _, *parts, _ = parse_reply(reply)
            for stream, part in zip(its_streams, parts, strict=True):
                if stream.cursor:
                    stream.add(part)

    yield from read_next(streams)
    for bucket in [*streams]:
        of_bucket = streams.pop(bucket)
        while any(stream.cursor for stream in of_bucket):
            yield from read_next({bucket: of_bucket})
        for stream in of_bucket:
            add(stream)


def _newest_first(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.at, event.fence_token or 0), reverse=True)


def _is_bare_loss(event: Event) -> bool:
    return event.outcome == "lost" and event.acquired_at is None


def _time(entry: Entry) -> datetime:
    return moment(number(entry["at"]))


def _ended(entry: Entry) -> Event:
    if not entry["holder"]:  # a loss whose hold is not known
        return _event(entry, "lost", "")
    record = parse_holder(entry["holder"])
    acquired_at = moment(record.acquired)
    return replace(
        _event(entry, printable(entry["how"]), record.info, record.weight, record.waited),
        acquired_at=acquired_at,
        held=(_time(entry) - acquired_at).total_seconds(),
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
        at=_time(entry),
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
"""The streams of a bucket, in the order in which the script returns them."""
