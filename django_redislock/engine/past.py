"""Reading what was: holdings that are over, acquisitions that were refused, and how often."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..conf import conf
from ..holder import read_info
from ..info import Event, Rates
from ..keys import BUCKETS, Keys
from ..lua import HISTORY
from ..names import check_name
from ..text import printable
from .listing import LONGEST
from .ops import Batch, Call, Flow
from .records import moment, number, ours, pairs, parsed, read_record, seconds

ENDING = {"name", "kind", "token", "how", "at", "holder"}
"""The fields of an event that is no refusal."""

COUNTED = ("acquired", "refused", "expired", "forced", "lost")
MINUTES = 60

Fields = dict[str, str]


def history(keys: Keys, name: str | None, limit: int) -> Flow[tuple[Event, ...]]:
    """The latest events first."""
    answers = yield from _ask(keys, name, limit)
    events = [
        event
        for _, ended, broken, refused, _ in answers
        for event in (
            *(ours(_ending, pairs(entry)) for entry in ended),
            *_breaks([pairs(entry) for entry in broken]),
            *(ours(_refusal, pairs(entry)) for entry in refused),
        )
        if event
    ]
    return tuple(sorted(events, key=_moment_of, reverse=True)[:limit])


def rates(keys: Keys) -> Flow[Rates]:
    """Of all locks, in each of the last 60 minutes."""
    answers = yield from _ask(keys, None, 0)
    last = max(int(now) for now, *_ in answers) // 60_000
    counts = {what: [0] * MINUTES for what in COUNTED}
    for *_, flat in answers:
        for field, times in pairs(flat).items():
            minute, _, what = field.partition(" ")
            place = (ours(number, minute) or 0) - last + MINUTES - 1
            if what in counts and 0 <= place < MINUTES:
                counts[what][place] += ours(number, times) or 0
    first = moment((last - MINUTES + 1) * 60_000)
    return Rates(
        minutes=tuple(first + timedelta(minutes=number) for number in range(MINUTES)),
        counts={what: tuple(each) for what, each in counts.items()},
    )


def _ask(keys: Keys, name: str | None, limit: int) -> Flow[list[Any]]:
    buckets = range(BUCKETS) if name is None else [keys.of(name).bucket]
    args = (name or "", limit, conf.history)
    answers = yield Batch(
        tuple(Call(HISTORY, keys.history(bucket), args) for bucket in buckets), LONGEST
    )
    return [parsed(answer) for answer in answers]


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
