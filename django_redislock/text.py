"""Text about locks that is safe to show and short."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.utils.timezone import localtime

from .conf import conf
from .redaction import HIDDEN, without_secrets
from .validators import MAX_METADATA_LEVELS

if TYPE_CHECKING:  # An installed app does not import it.
    from .snapshots import Event, Holder, Holding, Waiter

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[smhd]?)", re.ASCII)
_WILDCARDS = re.compile(r"[*?]+")

MAX_SHOWN_CHARACTERS = 10_000
"""The length of a text that is shown. Valid names, metadata and errors are shorter."""


def printable(text: object) -> str:
    """Return `text` with a backslash escape for each character that is not printable.

    Only the beginning of a very long text is returned. The spaces of a text that has no other
    characters are escaped, too. So control sequences cannot reach a terminal, reversed text cannot
    reach a reader, and lone surrogates cannot reach an encoder.
    """
    string = str(text)[: MAX_SHOWN_CHARACTERS + 1]
    if string and not string.strip(" "):
        string = string.replace(" ", r"\x20")
    elif not string.isprintable():
        string = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode()
            for char in string
        )
    if len(string) <= MAX_SHOWN_CHARACTERS:
        return string
    return f"{string[:MAX_SHOWN_CHARACTERS]}…"


def error_text(error: object) -> str:
    """Return the printable text of an error, without credentials."""
    return printable(without_secrets(error))


def short_duration(seconds: float) -> str:
    """Return `seconds` in its two largest units: ``4.2s``, ``3m 20s``, ``2d 4h``."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    if seconds < 60:
        return f"{int(seconds)}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``5m``, ``2h`` or ``1d``.

    Raises:
        ValueError: The text is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid duration {text!r}. Use for example 90s, 5m, 2h or 1d.")
    seconds = float(match["number"]) * _SECONDS[match["unit"] or "s"]
    if math.isinf(seconds):
        raise ValueError(f"the duration {text!r} is too long")
    return seconds


def age(holding: "Holding") -> float:
    """Return the seconds of the hold at the time of the snapshot, by the clock of Redis."""
    lease = holding.expires_at - holding.acquired_at
    return max(lease.total_seconds() - holding.ttl, 0.0)


def read_at(holding: "Holding") -> datetime:
    """Return the time of the snapshot, by the clock of Redis."""
    return holding.expires_at - timedelta(seconds=holding.ttl)


def clock_text(moment: datetime, now: datetime | None = None) -> str:
    """Return the time of day in Django's current time zone, with the date if it is not today."""
    local, today = localtime(moment), localtime(now or datetime.now(UTC)).date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


def some(texts: Iterable[str], limit: int = 3) -> str:
    """Return the first texts and how many more there are, or a dash if there are none."""
    every = [*texts]
    more = len(every) - limit
    return ", ".join(every[:limit]) + (f" (+{more})" if more > 0 else "") or "-"


def process_text(holder: "Holder") -> str:
    """Return ``host:pid``."""
    return printable(f"{holder.host or '?'}:{holder.pid or '?'}")


def holder_text(record: "Holding | Waiter | Event") -> str:
    """Return ``host:pid``, and the thread if it is not the main one."""
    return thread_text(record.holder)


def thread_text(holder: "Holder") -> str:
    """Return ``host:pid``, and the thread if it is not the main one."""
    process = f"{holder.host or '?'}:{holder.pid or '?'}"
    if holder.thread in ("", "MainThread"):
        return printable(process)
    return printable(f"{process} ({holder.thread})")


def task_text(record: "Holding | Waiter | Event") -> str:
    """Return the task's name and id, or an empty string outside a task."""
    holder = record.holder
    if not holder.task_id:
        return printable(holder.task_name or "")
    return printable(f"{holder.task_name or '?'} [{holder.task_id}]")


def holder_and_task_text(record: "Holding | Waiter | Event") -> str:
    """Return the holder and, if there is one, its task."""
    holder, task = holder_text(record), task_text(record)
    return f"{holder}, task {task}" if task else holder


def redacted_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return `metadata` without the values that ``REDISLOCK_REDACT`` hides.

    The value of each key that matches, at any depth and in any case, becomes ``"***"``. All other
    keys and values are unchanged, and still untrusted.

    Raises:
        ImproperlyConfigured: The setting is invalid.
    """
    hidden = any_of(tuple(conf.redact), re.IGNORECASE)
    redacted: dict[str, Any] = _redacted(metadata, hidden, MAX_METADATA_LEVELS)
    return redacted


def metadata_text(metadata: Mapping[str, Any], indent: int | None = None) -> str:
    """Return redacted metadata as printable JSON, or an empty string if there are none.

    Args:
        metadata: The metadata.
        indent: The spaces of each level. None puts everything on one line.

    Raises:
        ImproperlyConfigured: ``REDISLOCK_REDACT`` is invalid.
    """
    if not metadata:
        return ""
    text = json.dumps(redacted_metadata(metadata), ensure_ascii=False, indent=indent)
    return "\n".join(printable(line) for line in text.split("\n"))


@lru_cache(maxsize=16)
def any_of(patterns: tuple[str, ...], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return a regular expression that matches a text if one of the patterns does. ``*`` stands
    for any characters, ``?`` for one character."""
    simple = (_WILDCARDS.sub(_simple_wildcards, each) for each in patterns)
    without_classes = (translate(each.replace("[", "[[]")) for each in simple)
    return re.compile("|".join(without_classes) or "(?!)", flags)


def _simple_wildcards(run: re.Match[str]) -> str:
    # A regular expression takes much longer for "*?*?" than for "??*", which means the same.
    return "?" * run[0].count("?") + ("*" if "*" in run[0] else "")


def _redacted(value: Any, hidden: re.Pattern[str], levels: int) -> Any:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not levels:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if hidden.match(str(key)) else _redacted(each, hidden, levels - 1)
            for key, each in value.items()
        }
    return [_redacted(each, hidden, levels - 1) for each in value]
