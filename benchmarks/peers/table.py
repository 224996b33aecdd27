"""What was seen, as tables of Markdown: for the page, and shorter for the README."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.faults.table import markdown, write

BEGIN = "<!-- peers: written by `make peers` -->"
END = "<!-- peers: end -->"

Columns = Mapping[str, Mapping[str, str]]  # by column and row

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
    rows = next(iter(columns.values()))
    lines = [
        [corner, *columns],
        *([row, *(each[row] for each in columns.values())] for row in rows),
    ]
    head, *rest = ([text.replace("|", "¦") for text in line] for line in lines)
    return "\n".join([markdown(head), "|---" * len(head) + "|", markdown(*rest)])


def put_on(page: Path, readme: Path, told: str) -> None:
    write(page, told, BEGIN, END)
    there = cells(page.read_text().splitlines())

    def shortened(labels: Mapping[str, str], rows: Mapping[str, str], corner: str) -> str:
        columns = {
            column: {row: short(there[full, label]) for row, full in rows.items()}
            for column, label in labels.items()
        }
        return table(columns, corner)

    locks, tasks = (
        shortened(LOCKS, LOCK_ROWS, "Locks"),
        shortened(TASKS, TASK_ROWS, "Celery tasks"),
    )
    write(readme, f"{locks}\n\n{tasks}", BEGIN, END)


def cells(lines: Iterable[str]) -> dict[tuple[str, str], str]:
    """By row and column, those of all tables in it."""
    found: dict[tuple[str, str], str] = {}
    head: list[str] = []
    for line in lines:
        texts = [text.strip() for text in line.strip("|").split("|")] if line[:1] == "|" else []
        if head and texts:
            row, *rest = texts
            found |= {(row, label): text for label, text in zip(head[1:], rest, strict=False)}
        else:
            head = texts
    return found


def short(cell: str) -> str:
    """Up to a semicolon. A link stays as it is."""
    if cell.startswith("["):
        return cell
    cell = cell.partition(";")[0]
    for long, short in SHORTER:
        cell = re.sub(long, short, cell)
    return cell
