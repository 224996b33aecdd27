"""What was seen, as tables of Markdown: for the page, and the short of it for the README."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.faults.table import write

BEGIN = "<!-- peers: written by `make peers` -->"
END = "<!-- peers: end -->"

Columns = Mapping[str, Mapping[str, str]]
"""By column and row."""

LOCKS = {
    "django-redislock": "django-redislock",
    "`cache.lock`": "`cache.lock` (django-redis)",
    "python-redis-lock": "python-redis-lock",
    "pottery": "pottery",
    "django-pglock": "django-pglock",
}
TASKS = {
    "django-redislock, `while_executing`": "django-redislock, `while_executing`",
    "`until_executed`": "django-redislock, `until_executed`",
    "celery-once": "celery-once",
    "celery-singleton": "celery-singleton",
    "celery-heimdall": "celery-heimdall",
}
"""The README's columns, and what they are on the page."""

LOCK_ROWS = {
    "Work takes twice the lease": "the work takes twice the lease",
    "Server gone for 1.5 s": "its server is killed, and back with its data 1.5 s later",
    "Reply to acquire lost": "the reply to acquire is lost (`blocking=False`)",
    "Order of 8 who wait": "8 wait, and who had it (0) asks again at once: the order",
    "Next waiter killed: delay": "the next who waits is killed, then it is released",
    "Holder stood still: it knows": "its holder stands still past its lease: does it know?",
    "and writes at once": "the same, and it writes at once: fencing",
    "Commands of one that waits": "commands sent by one that waits",
}
TASK_ROWS = {
    "Child killed": "SIGKILL of the child",
    "Hard time limit": "hard time limit",
    "Callback of a chord with a duplicate": "a chord with a duplicate",
    "`self.retry()`": "`self.retry()`",
}
"""Its rows, likewise."""

SHORTER = (
    (r"\*\*", ""),
    (r"an equal one runs after", "free after"),
    (r"no equal one in ([^:]+): .*", r"not free in \1"),
    (r"callback (not run|ran).*", r"\1"),
    (r"raises ConnectionError, and", "error,"),
    (r"says False, and", "False,"),
    (r" by nobody| until the one behind it has it", ""),
    (r"^FIFO", "in order"),
    (r"^\d( \d)+$", "not in order"),
)
"""What its cells have for what those of the page have."""


def table(columns: Columns, corner: str = "") -> str:
    head = [_line([corner, *columns]), "|---" * (len(columns) + 1) + "|"]
    rows = next(iter(columns.values()))
    lines = (_line([row, *(column[row] for column in columns.values())]) for row in rows)
    return "\n".join([*head, *lines])


def cells(text: str) -> dict[tuple[str, str], str]:
    """By row and column, those of all tables in it."""
    found = {}
    for head, *rows in _tables(text):
        for row in rows:
            found |= {(row[0], head[at]): row[at] for at in range(1, len(row))}
    return found


def compact(page: str) -> str:
    """The README's tables, of the page's cells."""
    there = cells(page)

    def columns(labels: Mapping[str, str], rows: Mapping[str, str]) -> Columns:
        return {
            column: {row: short(there[(full, label)]) for row, full in rows.items()}
            for column, label in labels.items()
        }

    locks = table(columns(LOCKS, LOCK_ROWS), "Locks")
    tasks = table(columns(TASKS, TASK_ROWS), "Celery tasks")
    return f"{locks}\n\n{tasks}"


def put_on(page: Path, readme: Path, told: str) -> None:
    write(page, told, BEGIN, END)
    write(readme, compact(page.read_text()), BEGIN, END)


def _line(texts: list[str]) -> str:
    return f"| {' | '.join(text.replace('|', '¦') for text in texts)} |"


def short(cell: str) -> str:
    """Up to a semicolon; a link stays as it is."""
    if cell.startswith("["):
        return cell
    cell = cell.partition(";")[0]
    for long, short in SHORTER:
        cell = re.sub(long, short, cell)
    return cell


def _tables(text: str) -> Iterator[list[list[str]]]:
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            yield [_texts(each) for each in lines if not each.startswith(("|---", "| ---"))]
            lines = []


def _texts(line: str) -> list[str]:
    return [text.strip() for text in line.strip("|").split("|")]
