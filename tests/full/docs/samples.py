"""Extract the code samples of a page, in order, with a Markdown parser."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.tools import ROOT

INVISIBLE = re.compile(r"<!-- invisible-code-block: (\w+)\n(.*?)-->", re.DOTALL)
DIRECTIVE = re.compile(r"\{([\w:-]+)\}\s*(\S*)")
OPTIONS = re.compile(r"(:[\w-]+:.*\n)*\n*")

INCLUDED = ("testproject/gallery/exhibits", "tests/fast/testing_kit/sample")
"""Folders whose files pages can include, because other tests run them."""

parse = MarkdownIt("commonmark").enable("table").parse


@dataclass(frozen=True)
class Sample:
    page: str
    line: int
    """The line of the opening fence. The code begins on the next line."""

    language: str
    text: str
    is_hidden: bool = False
    """Whether only the tests see it."""

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the paths of all pages, relative to `ROOT`."""
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found if path.exists()]
    return [name for name in names if not name.startswith("docs/_build/")]


def samples_of(page: str) -> list[Sample]:
    text = (ROOT / page).read_text()
    found = [Sample(page, *each) for each in _found(text, 1)]
    return [sample for sample in found if not _is_included(sample)]


def _is_included(sample: Sample) -> bool:
    """Return whether the sample is (part of) a file that other tests run."""
    name, _, file = sample.language.partition(" ")
    shown = os.path.normpath(Path(sample.page).parent / file)
    return name == "{literalinclude}" and shown.startswith(INCLUDED)


def _found(text: str, first: int) -> Iterator[tuple[int, str, str, bool]]:
    """Yield the fields of each sample in a text that begins on line `first`."""
    for token in parse(text):
        line = first + token.map[0] if token.map else 0
        if token.type == "fence":
            yield from _fenced(token, line)
        elif token.type == "code_block":
            yield line, "", token.content, False
        elif token.type == "html_block" and (hidden := INVISIBLE.match(token.content)):
            yield line, *hidden.groups(), True


def _fenced(token: Token, line: int) -> Iterator[tuple[int, str, str, bool]]:
    directive = DIRECTIVE.match(token.info)
    if not directive:
        yield line, token.info.strip(), token.content, False
        return
    name, argument = directive.groups()
    if name == "code-block":
        options = OPTIONS.match(token.content).group()
        yield line + options.count("\n"), argument, token.content[len(options) :], False
    elif name == "literalinclude" or "code-block::" in token.content:
        yield line, token.info, token.content, False
    else:
        yield from _found(token.content, line + 1)
