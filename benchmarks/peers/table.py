"""The results as a table of Markdown, and the markers between which the page has them."""

from collections.abc import Mapping

from tests.faults.table import markdown

BEGIN = "<!-- peers: written by `make peers` -->"
END = "<!-- peers: end -->"

Columns = Mapping[str, Mapping[str, str]]
"""The cells by column and row."""


def table(columns: Columns, corner: str = "") -> str:
    rows = next(iter(columns.values()))
    lines = [
        [corner, *columns],
        *([row, *(each[row] for each in columns.values())] for row in rows),
    ]
    head, *rest = ([text.replace("|", "¦") for text in line] for line in lines)
    return "\n".join([markdown(head), "|---" * len(head) + "|", markdown(*rest)])
