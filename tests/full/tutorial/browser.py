"""A browser without scripts: it follows links, fills in forms, and returns the text."""

import html
import http.cookiejar
import re
import urllib.parse
import urllib.request

INVISIBLE = re.compile(r"<(script|style|title)\b.*?</\1>|<wbr>", re.DOTALL)
LINK = re.compile(r"<a\b([^>]*)>(.*?)</a>", re.DOTALL)
FORM = re.compile(r"<form\b([^>]*)>(.*?)</form>", re.DOTALL)
INPUT = re.compile(r"<input\b([^>]*)>")


def words_of(page: str) -> str:
    """Return the visible text of a page, or of a part of it."""
    text = re.sub("<[^>]*>", " ", INVISIBLE.sub("", page))
    return " ".join(html.unescape(text).split())


def attributes(tag: str) -> dict[str, str]:
    return {name: html.unescape(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', tag)}


class Browser:
    def __init__(self) -> None:
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)
        self._address = ""
        self._page = ""

    @property
    def words(self) -> str:
        return words_of(self._page)

    def open(self, address: str, data: dict[str, str] | None = None) -> None:
        there = urllib.parse.urljoin(self._address, address)
        sent = None if data is None else urllib.parse.urlencode(data).encode()
        # Django checks the origin of a form.
        headers = {"Referer": self._address or there}
        request = urllib.request.Request(there, sent, headers)  # noqa: S310  the reader's own
        with self._opener.open(request, timeout=20) as answer:
            self._address = answer.geturl()
            self._page = answer.read().decode()

    def reload(self) -> None:
        self.open(self._address)

    def fill_in(self, *answers: str) -> None:
        """Send the page's first form that has as many text fields as there are answers."""
        for tag, body in FORM.findall(self._page):
            asked = [each["name"] for each in inputs(body, "text", "password")]
            if len(asked) == len(answers):
                return self._send(tag, body, dict(zip(asked, answers, strict=True)))
        raise AssertionError(f"no such form on {self._address}: {self.words}")

    def press(self, label: str) -> None:
        """Follow the link with that label, or send the form of the button with that label."""
        for tag, text in LINK.findall(self._page):
            if words_of(text) == label:
                return self.open(attributes(tag)["href"])
        for tag, body in FORM.findall(self._page):
            for button in inputs(body, "submit"):
                if button["value"] == label:
                    sent = {button["name"]: label} if "name" in button else {}
                    return self._send(tag, body, sent)
        raise AssertionError(f"no {label!r} on {self._address}: {self.words}")

    def _send(self, tag: str, body: str, more: dict[str, str]) -> None:
        form = attributes(tag)
        assert form["method"].lower() == "post"
        hidden = {each["name"]: each["value"] for each in inputs(body, "hidden")}
        self.open(form.get("action", ""), hidden | more)


def inputs(body: str, *kinds: str) -> list[dict[str, str]]:
    found = map(attributes, INPUT.findall(body))
    return [each for each in found if each.get("type") in kinds]
