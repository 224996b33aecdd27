"""A browser without scripts: it follows links, fills in forms, and returns the text."""

import http.cookiejar
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from html.parser import HTMLParser

QUIET = {"script", "style", "title"}
"""Elements whose text is not visible on the page."""


@dataclass
class Form:
    action: str
    is_post: bool
    fields: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """The names of the fields that a user fills in."""


class Page(HTMLParser):
    """The content of a page: its words, and its links and buttons by label."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: dict[str, str] = {}
        self.buttons: dict[str, tuple[Form, dict[str, str]]] = {}
        self.forms: list[Form] = []
        self._texts: list[str] = []
        self._quiet = False
        self._href = self._link = ""
        self.feed(html)

    @property
    def words(self) -> str:
        return " ".join("".join(self._texts).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self._texts.append("" if tag == "wbr" else " ")
        self._quiet = tag in QUIET
        if tag == "a":
            self._href, self._link = given.get("href", ""), ""
        elif tag == "form":
            is_post = given.get("method", "").lower() == "post"
            self.forms.append(Form(given.get("action", ""), is_post))
        elif tag == "input" and self.forms:
            self._note_input(self.forms[-1], given)

    def handle_endtag(self, tag: str) -> None:
        self._texts.append(" ")
        self._quiet = False
        if tag == "a":
            self.links.setdefault(" ".join(self._link.split()), self._href)

    def handle_data(self, data: str) -> None:
        self._link += data
        if not self._quiet:
            self._texts.append(data)

    def _note_input(self, form: Form, given: dict[str, str]) -> None:
        kind, name, value = (given.get(each, "") for each in ("type", "name", "value"))
        if kind == "submit":
            self.buttons.setdefault(value, (form, {name: value} if name else {}))
        elif kind == "hidden":
            form.fields[name] = value
        elif kind in ("text", "password"):
            form.asked.append(name)


class Browser:
    def __init__(self) -> None:
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)
        self.address = ""
        self.page = Page("")

    def open(self, address: str, data: dict[str, str] | None = None) -> None:
        there = urllib.parse.urljoin(self.address, address)
        sent = None if data is None else urllib.parse.urlencode(data).encode()
        # Django checks the origin of a form.
        headers = {"Referer": self.address or there}
        request = urllib.request.Request(there, sent, headers)  # noqa: S310  the reader's own
        with self._opener.open(request, timeout=20) as answer:
            self.address, self.page = answer.geturl(), Page(answer.read().decode())

    def fill_in(self, *answers: str) -> None:
        """Send the page's first form that has as many fields as there are answers."""
        form = next(form for form in self.page.forms if len(form.asked) == len(answers))
        self._send(form, dict(zip(form.asked, answers, strict=True)))

    def press(self, label: str) -> None:
        """Follow the link with that label, or send the form of the button with that label."""
        if label in self.page.links:
            self.open(self.page.links[label])
        else:
            assert label in self.page.buttons, f"no {label!r} on {self.address}: {self.page.words}"
            self._send(*self.page.buttons[label])

    def reload(self) -> None:
        self.open(self.address)

    def _send(self, form: Form, more: dict[str, str]) -> None:
        assert form.is_post
        self.open(form.action, form.fields | more)
