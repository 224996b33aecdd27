"""Text in the pictures is readable in both colour schemes, and is not cut off."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from django.utils.translation import override

from django_redislock.lock_state import STATES
from tests.colours import contrast
from tests.tools import ROOT

PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))
PAGES = {"light": "#ffffff", "dark": "#131416"}
LEAST_CONTRAST = 4.5

CHARACTER_WIDTHS = {"normal": 0.55, "bold": 0.6, "monospace": 0.61}
"""Estimated widths of characters, relative to the font size."""

INHERITED = ("fill", "font-size", "font-weight", "font-family", "text-anchor")
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{((?:[^{}]*\{[^{}]*\})*)[^{}]*\}")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
SHIFT = re.compile(r"translate\(([\d.-]+),? ?([\d.-]+)\)")

Style = dict[str, str]


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def contains(self, other: "Box") -> bool:
        inside = self.left <= other.left and other.right <= self.right
        return inside and self.top <= other.top and other.bottom <= self.bottom

    def overlaps(self, other: "Box") -> bool:
        beside = other.right <= self.left or self.right <= other.left
        return not (beside or other.bottom <= self.top or self.bottom <= other.top)

    def middle(self) -> "Box":
        x, y = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        return Box(x, y, x, y)


class Text(NamedTuple):
    text: str
    box: Box
    colour: str
    behind: str
    """The colour of the box behind the middle of the text."""

    later: int
    """The index in `Picture.drawn` of the next box that is drawn."""


def rules(css: str, scheme: str) -> list[tuple[str, Style]]:
    light, dark = DARK.sub("", css), "".join(DARK.findall(css))
    return [
        (selector.strip(), dict(re.findall(r"([\w-]+):\s*([^;]*[^;\s])", body)))
        for selectors, body in RULE.findall(light + (dark if scheme == "dark" else ""))
        for selector in selectors.split(",")
    ]


class Picture:
    def __init__(self, path: Path, scheme: str) -> None:
        self.root = ElementTree.parse(path).getroot()  # noqa: S314  our own files
        for each in self.root.iter():
            each.tag = each.tag.partition("}")[2]
        self.rules = rules("".join(each.text or "" for each in self.root.iter("style")), scheme)
        x, y, width, height = map(float, self.root.attrib["viewBox"].split())
        self.frame = Box(x, y, x + width, y + height)
        self.drawn = [(self.frame, PAGES[scheme])]

    def texts(self) -> Iterator[Text]:
        yield from self._walk(self.root, {"fill": "#000000", "font-size": "16"}, 0, 0)

    def _walk(self, at: ElementTree.Element, outer: Style, x: float, y: float) -> Iterator[Text]:
        if at.tag in ("style", "defs"):
            return
        own = {name: value for name, value in at.attrib.items() if name in INHERITED}
        names = {at.tag, *(f".{name}" for name in at.get("class", "").split())}
        for selector, declared in self.rules:
            own |= {k: v for k, v in declared.items() if selector in names and k in INHERITED}
        style = outer | own
        if shift := SHIFT.search(at.get("transform", "")):
            x, y = x + float(shift[1]), y + float(shift[2])
        if at.tag == "rect" and style["fill"].startswith("#"):
            self.drawn.append((self._box(at, x, y), style["fill"]))
        if at.tag == "text" and "".join(at.itertext()).strip():
            yield self._text(at, style, x, y)
        for each in at:
            yield from self._walk(each, style, x, y)

    def _box(self, at: ElementTree.Element, x: float, y: float) -> Box:
        if at.get("width") == "100%":
            return self.frame
        left, top = x + float(at.get("x", 0)), y + float(at.get("y", 0))
        return Box(left, top, left + float(at.attrib["width"]), top + float(at.attrib["height"]))

    def _text(self, at: ElementTree.Element, style: Style, x: float, y: float) -> Text:
        text = "".join(at.itertext())
        size = float(style["font-size"].removesuffix("px"))
        fixed = "monospace" in style.get("font-family", "")
        kind = "monospace" if fixed else style.get("font-weight", "normal")
        width = float(at.get("textLength", CHARACTER_WIDTHS[kind] * size * len(text)))
        before = {"middle": width / 2, "end": width}.get(style.get("text-anchor", ""), 0)
        left, base = x + float(at.get("x", 0)) - before, y + float(at.get("y", 0))
        box = Box(left, base - 0.8 * size, left + width, base + 0.2 * size)
        behind = [colour for drawn, colour in self.drawn if drawn.contains(box.middle())][-1]
        return Text(text, box, style["fill"], behind, len(self.drawn))


@pytest.mark.parametrize("scheme", PAGES)
@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_text_has_contrast_and_is_not_cut(path: Path, scheme: str) -> None:
    picture = Picture(path, scheme)
    texts = list(picture.texts())
    assert texts
    pale = [each for each in texts if contrast(each.colour, each.behind) < LEAST_CONTRAST]
    assert not pale
    assert not [each for each in texts if not picture.frame.contains(each.box)]
    covers = {each: [box for box, _ in picture.drawn[each.later :]] for each in texts}
    assert not [each for each in texts if any(map(each.box.overlaps, covers[each]))]


def test_states_have_the_names_of_the_admin_and_the_terminal() -> None:
    picture = Picture(ROOT / "docs" / "images" / "on-call.svg", "light")
    with override("en"):  # another test may have changed the language
        labels = {str(state.label) for state in STATES.values()}
    assert labels <= {each.text for each in picture.texts()}
