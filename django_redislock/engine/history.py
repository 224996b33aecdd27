"""Read the history: holds that ended, acquisitions that were refused, and how often."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from ..conf import conf
from ..identity import read_info
from ..keys import BUCKETS, Keys
from ..lua import HISTORY
from ..names import check_name
from ..snapshots import Event, Rates
from ..text import printable
from .operations import Batch, Call, Flow
from .parsing import moment, number, ours, pairs, parsed, read_record, seconds
from .queries import LONGEST

ENDING = {"name", "kind", "token", "how", "at", "holder"}
"""The fields of an event that is no refusal."""

COUNTED = ("acquired", "refused", "expired", "forced", "lost")
MINUTES = 60

STREAMS = ("ended", "broken", "refused")

FIRST_PAGE = 10
"""Entries of a stream that are read at once even if fewer are needed."""

Fields = dict[str, str]

ENTRIES_PER_ROUND_TRIP = 192
"""Entries of the history that one round trip reads at most. The server runs all calls of a round
trip before it serves other clients, so this limits how long they wait."""

FULL = 0.9
"""The part of ``REDISLOCK_HISTORY`` from which a stream may have dropped entries."""


@dataclass(slots=True)
class Stream:
    """How far the reading of one stream of a bucket has come."""

    age: int | None
    """Milliseconds: older entries are not needed. None: all are."""

    most: int
    """Endings that are needed at most."""

    before: str = "+"
    """The script's cursor of the next entries. Empty if no more are needed."""

    entries: list[Fields] = field(default_factory=list)
    endings: int = 0
    losses: set[tuple[str | None, str | None]] = field(default_factory=set)
    """Losses whose ending is still to be read. A loss is noted without a record when its holder
    comes to release the lock, which may be long after the lease expired."""

    length: int = 0
    """How many entries the server has."""

    oldest: Fields = field(default_factory=dict)
    """The first of them."""

    def take(self, answer: Any) -> None:
        more, before, entries, self.length, oldest = answer
        self.oldest = pairs(oldest)
        for entry in map(pairs, entries):
            which = entry.get("name"), entry.get("token")
            if self.endings >= self.most and which not in self.losses:
                continue
            self.entries.append(entry)
            if entry.get("holder") == "":
                self.losses.add(which)
            else:
                self.losses.discard(which)
                self.endings += 1
        if not more and self.losses and self.age is not None:
            self.age, more = None, True
        is_done = not more or (self.endings >= self.most and not self.losses)
        self.before = "" if is_done else before


@dataclass(frozen=True, slots=True)
class Recent:
    """Recent events of all locks."""

    events: tuple[Event, ...]
    """The latest first, without metadata."""

    oldest: datetime | None
    """When the oldest of all events that are kept happened, also of those that were not read."""

    reach: datetime | None
    """Since when no event was dropped or left out; None if none ever was."""


def history(keys: Keys, name: str | None, limit: int) -> Flow[tuple[Event, ...]]:
    """Read the latest events, the latest first."""
    events: list[Event] = []

    def take(ended: Stream, broken: Stream, refused: Stream) -> None:
        events[:] = _in_order([*events, *_events(ended, broken, refused)])[:limit]

    buckets = range(BUCKETS) if name is None else [keys.of(name).bucket]
    streams = {bucket: [Stream(None, limit) for _ in STREAMS] for bucket in buckets}
    yield from _read(keys, streams, take, name=name or "", most=max(limit, FIRST_PAGE))
    return tuple(events)


def recent(keys: Keys, age: timedelta, broken_age: timedelta, most: int) -> Flow[Recent]:
    """Read the events of all locks that are not older than `age`, or `broken_age` if a holding did
    not end as it should: of each stream of a bucket the latest `most`."""
    events: list[Event] = []
    oldest: list[datetime] = []
    reach: list[datetime] = []

    def take(*streams: Stream) -> None:
        for stream in streams:
            first = ours(_at, stream.oldest)
            if first:
                oldest.append(first)
                if stream.length >= conf.history * FULL:
                    reach.append(first)
            if stream.endings >= most and (last := ours(_at, stream.entries[-1])):
                reach.append(last)
        events.extend(_events(*streams))

    ages = [round(each.total_seconds() * 1000) for each in (age, broken_age, age)]
    read = {bucket: [Stream(each, most) for each in ages] for bucket in range(BUCKETS)}
    yield from _read(keys, read, take, brief=True)
    return Recent(tuple(_in_order(events)), min(oldest, default=None), max(reach, default=None))


def _at(entry: Fields) -> datetime:
    return moment(number(entry["at"]))


def _read(
    keys: Keys,
    read: dict[int, list[Stream]],
    take: Callable[..., None],
    *,
    name: str = "",
    most: int = ENTRIES_PER_ROUND_TRIP,
    brief: bool = False,
) -> Flow[None]:
    """Read the streams of some buckets: a part of each in the first round trip, then one bucket
    after the other. `take` gets the streams of a bucket once they are read; then they are let go,
    as all of them take much memory."""

    def read_next(some: dict[int, list[Stream]]) -> Flow[None]:
        count = min(ENTRIES_PER_ROUND_TRIP // (len(STREAMS) * len(some)), most)
        calls = []
        for bucket, streams in some.items():
            wanted = [(each.before, "" if each.age is None else each.age) for each in streams]
            args = (name, count, int(brief), *chain(*wanted), conf.history)
            calls.append(Call(HISTORY, keys.history(bucket), args))
        answers = yield Batch(tuple(calls), LONGEST)
        for streams, answer in zip(some.values(), answers, strict=True):
            _, *parts, _ = parsed(answer)
            for stream, part in zip(streams, parts, strict=True):
                if stream.before:
                    stream.take(part)

    yield from read_next(read)
    for bucket in [*read]:
        streams = read.pop(bucket)
        while any(stream.before for stream in streams):
            yield from read_next({bucket: streams})
        take(*streams)


def _events(ended: Stream, broken: Stream, refused: Stream) -> list[Event]:
    found = (
        *(ours(_ending, entry) for entry in ended.entries),
        *_breaks(broken.entries),
        *(ours(_refusal, entry) for entry in refused.entries),
    )
    return [event for event in found if event]


def _in_order(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=_moment_of, reverse=True)


def rates(keys: Keys) -> Flow[Rates]:
    """Of all locks, in each of the last 60 minutes."""
    no_streams = [""] * (2 * len(STREAMS))
    args: tuple[str | int, ...] = ("", 0, 0, *no_streams, conf.history)
    calls = [Call(HISTORY, keys.history(bucket), args) for bucket in range(BUCKETS)]
    answers = [parsed(answer) for answer in (yield Batch(tuple(calls), LONGEST))]
    last = max(int(now) for now, *_ in answers) // 60_000
    counts = {what: [0] * MINUTES for what in COUNTED}
    for *_, flat in answers:
        for counted, times in pairs(flat).items():
            minute, _, what = counted.partition(" ")
            place = (ours(number, minute) or 0) - last + MINUTES - 1
            if what in counts and 0 <= place < MINUTES:
                counts[what][place] += ours(number, times) or 0
    first = moment((last - MINUTES + 1) * 60_000)
    return Rates(
        minutes=tuple(first + timedelta(minutes=number) for number in range(MINUTES)),
        counts={what: tuple(each) for what, each in counts.items()},
    )


def _breaks(told: Sequence[Fields]) -> list[Event | None]:
    """How holdings ended that did not end as they should, of entries that have the latest first.
    A holder that came to release what it no longer had tells that its holding, which had ended
    before, was lost."""
    last: dict[tuple[str, str], Fields] = {}
    endings = []
    for entry in reversed([entry for entry in told if entry.keys() >= ENDING]):
        before = last.get(_which(entry))
        if entry["holder"] or not before:
            last[_which(entry)] = entry
            endings.append(entry)
        elif before["how"] == "expired":
            before["how"] = "lost"
    return [ours(_ending if entry["holder"] else _bare_loss, entry) for entry in endings]


def _which(entry: Fields) -> tuple[str, str]:
    return entry["name"], entry["token"]


def _ending(entry: Fields) -> Event:
    record = read_record(entry["holder"])
    said = read_info(record.info)
    at, acquired_at = moment(number(entry["at"])), moment(record.acquired)
    return Event(
        name=check_name(entry["name"]),
        kind=printable(entry["kind"]),
        outcome=printable(entry["how"]),
        at=at,
        acquired_at=acquired_at,
        waited=seconds(record.waited),
        held=(at - acquired_at).total_seconds(),
        fence_token=record.fence_token,
        weight=record.weight,
        holder=said.holder,
        metadata=said.metadata,
    )


def _bare_loss(entry: Fields) -> Event:
    return _unheld(entry, "lost", 0, 0.0, "")


def _refusal(entry: Fields) -> Event:
    skipped = read_info(entry["info"]).on_conflict == "skip"
    outcome, waited = "skipped" if skipped else "refused", seconds(number(entry["waited"]))
    return _unheld(entry, outcome, number(entry["weight"]), waited, entry["info"])


def _unheld(entry: Fields, outcome: str, weight: int, waited: float, told: str) -> Event:
    said = read_info(told)
    return Event(
        name=check_name(entry["name"]),
        kind=printable(entry["kind"]),
        outcome=outcome,
        at=moment(number(entry["at"])),
        acquired_at=None,
        waited=waited,
        held=0.0,
        fence_token=None,
        weight=weight,
        holder=said.holder,
        metadata=said.metadata,
    )


def _moment_of(event: Event) -> tuple[Any, int]:
    return event.at, event.fence_token or 0
