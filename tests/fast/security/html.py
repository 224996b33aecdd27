"""The structure of an HTML page: its elements, its links and its text."""

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser

MOVING = {"line", "text"}
"""The elements of a chart's axis. Their number depends on the time of day."""

ADDRESSES = {"href", "src", "action", "formaction", "xlink:href"}

Attributes = list[tuple[str, str | None]]


@dataclass
class Page(HTMLParser):
    """A page, parsed like in a browser."""

    shape: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """The number of each element, by its name and the names of its attributes."""

    addresses: set[str] = field(default_factory=set)
    """The addresses in the page."""

    words: list[str] = field(default_factory=list)
    """The text and the values of attributes, except for hidden values of forms."""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        if tag not in MOVING:
            self.shape[tag, *(name for name, _ in attrs)] += 1
        self.words += [value or "" for name, value in attrs if (tag, name) != ("input", "value")]
        self.addresses |= {value or "" for name, value in attrs if name in ADDRESSES}

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.shape["a comment", data] += 1

    def handle_decl(self, decl: str) -> None:
        self.shape["a declaration", decl] += 1

    def unknown_decl(self, data: str) -> None:
        self.shape["a declaration", data] += 1

    def handle_pi(self, data: str) -> None:
        self.shape["an instruction", data] += 1

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def read(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    return page
