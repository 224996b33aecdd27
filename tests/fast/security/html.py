"""The structure of an HTML page: its elements, its links and its text."""

from collections import Counter
from html.parser import HTMLParser

MOVING = {"line", "text"}
"""The elements of a chart's axis. Their number depends on the time of day."""

ADDRESSES = {"href", "src", "action", "formaction", "xlink:href"}


class Page(HTMLParser):
    """A page, parsed like in a browser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: Counter[tuple[str, ...]] = Counter()
        """The number of each element, by its name and the names of its attributes."""
        self.addresses: set[str] = set()
        self.text = ""
        """The text and the values of attributes, except for hidden values of forms."""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in MOVING:
            self.shape[tag, *(name for name, _ in attrs)] += 1
        for name, value in attrs:
            if (tag, name) != ("input", "value"):
                self.text += f"{value or ''}\n"
            if name in ADDRESSES:
                self.addresses.add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"

    def handle_comment(self, data: str) -> None:
        self.shape["no element", data] += 1

    handle_decl = unknown_decl = handle_pi = handle_comment
