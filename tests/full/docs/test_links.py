"""Links to files, pictures and headings of the repository have a target."""

import re
from itertools import pairwise
from urllib.parse import unquote

import pytest

from tests.tools import ROOT

from .samples import pages, parse

TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
SOURCES = re.compile(r'(?:src|srcset|href)="([^"]+)"')


def links(page: str) -> set[str]:
    """Return the targets of a page's links and pictures, without other sites."""
    found = set()
    for token in parse((ROOT / page).read_text()):
        found.update(SOURCES.findall(token.content))
        for each in token.children or ():
            found.update({each.attrs.get("href"), each.attrs.get("src")} - {None})
            found.update(SOURCES.findall(each.content) if each.type == "html_inline" else ())
    return {unquote(link) for link in found if not re.match(r"\w+:", link)}


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as in GitHub and Sphinx."""
    tokens = parse((ROOT / page).read_text())
    heads = [
        "".join(part.content for part in text.children)
        for opening, text in pairwise(tokens)
        if opening.type == "heading_open"
    ]
    named = set(TARGET.findall((ROOT / page).read_text()))
    return {*map(of_github, heads)} | named


def of_github(head: str) -> str:
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", pages())
def test_internal_links_have_a_target(page):
    dead = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and not has(target, anchor)):
            dead.append(link)
    assert not dead


def has(target, anchor: str) -> bool:
    return anchor in anchors(target.resolve().relative_to(ROOT.resolve()).as_posix())
