"""The results as a table of Markdown, and the markers between which the page has them."""

from collections.abc import Mapping

BEGIN = "<!-- peers: written by `make peers` -->"
END = "<!-- peers: end -->"

Columns = Mapping[str, Mapping[str, str]]
"""The cells by column and row."""


def table(columns: Columns, corner: str = "") -> str:
    head = [_line([corner, *columns]), "|---" * (len(columns) + 1) + "|"]
    rows = next(iter(columns.values()))
    lines = (_line([row, *(column[row] for column in columns.values())]) for row in rows)
    return "\n".join([*head, *lines])


def _line(texts: list[str]) -> str:
    return f"| {' | '.join(text.replace('|', '¦') for text in texts)} |"
