"""Regular expressions that match what a page shows, except for what differs between readers."""

import re

VARIES = {
    r"\.\.\.": r"[^\n]*",
    r"\blaptop:\d+": r"[^\s,:]+:\d+",  # a holder
    r"\b[0-9a-f]{8}-[0-9a-f-]{27}": r"[0-9a-f-]{36}",  # a task's id
    r"\b[0-9a-f]{8}…": r"[0-9a-f]{8}…",
    # A reader may be slower than the first renewal.
    r"\b(?:renewed \d+(?:\.\d)?s ago|not renewed yet)\b": (
        r"(?:renewed (?:\d+m )?\d+(?:\.\d)?s ago|not renewed yet)"
    ),
    r"\bForkPoolWorker-\d\b": r"ForkPoolWorker-\d+",
    r"\b\d{16}\b": r"\d{16}",  # a fencing token
    r"\b\d{4}-\d\d-\d\d\b": r"\d{4}-\d\d-\d\d",
    r"\b\d\d:\d\d:\d\d(?:,\d{3})?": r"\d\d:\d\d:\d\d(?:,\d{3})?",
    r"\b\d+(?:\.\d)?s\b": r"(?:\d+m )?\d+(?:\.\d)?s",
    r"\b\d+\.\d+ ms\b": r"\d+(?:\.\d+)? ms",
    r"\b\d+ s ago\b": r"\d+ s ago",
}
"""Patterns of values that differ between readers: on the page, and on the screen."""

ANY_OF_THEM = re.compile("|".join(f"({each})" for each in VARIES))


def pattern(shown: str) -> str:
    """Return a pattern for `shown`. ``...`` matches any words, and on its own line any lines."""
    return "".join(map(_line_pattern, tidied(shown).splitlines(keepends=True)))


def _line_pattern(line: str) -> str:
    if line.strip() == "...":
        return r"(?:[^\n]*\n)*?"
    found, as_good, at = [], [*VARIES.values()], 0
    for each in ANY_OF_THEM.finditer(line):
        found += [re.escape(line[at : each.start()]), as_good[each.lastindex - 1]]
        at = each.end()
    return "".join([*found, re.escape(line[at:])])


def tidied(text: str) -> str:
    """Ignore the width of columns."""
    return re.sub(r" +\n", "\n", re.sub(r"[ \t]+", " ", text))
