"""What a page has its reader do, in order.

Of its text these count, and each is plain to a reader too:

- a ``console`` listing: lines that begin with a prompt are typed, ``^C`` is those keys, the others
  are what is seen. Its caption names the terminal; without one it is the first. Where it ends
  with ``...``, its last program goes on.
- a ``python`` listing is a file, named by its caption; ``, at its end`` adds to it.
- a link to the reader's own machine is opened in the browser; what is code in the same paragraph
  is filled into the login form.
- bold is the link or button that is pressed.
- a ``text`` listing with the caption ``Browser`` is seen there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

FIRST = "First terminal"

AT_ITS_END = ", at its end"

OWN_MACHINE = "http://127.0.0.1:"

TYPED = re.compile(r"(?P<prompt>\$ |>>> )(?P<typed>.*)|(?P<keys>\^C)")

VARIES = {
    r"\.\.\.": r"[^\n]*",
    r"\blaptop:\d+": r"[^\s,:]+:\d+",  # who holds a lock
    r"\b[0-9a-f]{8}-[0-9a-f-]{27}": r"[0-9a-f-]{36}",  # a task's id
    r"\b[0-9a-f]{8}…": r"[0-9a-f]{8}…",
    r"\bForkPoolWorker-\d\b": r"ForkPoolWorker-\d+",
    r"\b\d{16}\b": r"\d{16}",  # a fencing token
    r"\b\d{4}-\d\d-\d\d\b": r"\d{4}-\d\d-\d\d",
    r"\b\d\d:\d\d:\d\d(?:,\d{3})?": r"\d\d:\d\d:\d\d(?:,\d{3})?",
    r"\b\d+(?:\.\d)?s\b": r"(?:\d+m )?\d+(?:\.\d)?s",
    r"\b\d+\.\d+ ms\b": r"\d+(?:\.\d+)? ms",
    r"\b\d+ s ago\b": r"\d+ s ago",
}
"""What differs from reader to reader, and what is as good as that on the page."""

ANY_OF_THEM = re.compile("|".join(f"({each})" for each in VARIES))

LISTING = re.compile(r"(\{code-block\} )?(?P<language>\w+)")

OPTION = re.compile(r":(?P<name>\w+): (?P<value>.+)\n")


@dataclass(frozen=True)
class Exchange:
    """A line that is typed after a prompt, or keys after none, and what is seen then."""

    prompt: str
    typed: str
    shown: str

    @property
    def is_keys(self) -> bool:
        return not self.prompt and bool(self.typed)


@dataclass(frozen=True)
class Console:
    terminal: str
    exchanges: tuple[Exchange, ...]

    @property
    def goes_on(self) -> bool:
        return self.exchanges[-1].shown.splitlines()[-1:] == ["..."]


@dataclass(frozen=True)
class File:
    path: str
    text: str
    added: bool


@dataclass(frozen=True)
class Open:
    address: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Press:
    label: str


@dataclass(frozen=True)
class See:
    text: str


Step = Console | File | Open | Press | See


def steps(text: str) -> Iterator[Step]:
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            yield listing(token)
        elif token.type == "inline":
            yield from in_browser(token.children or [])


def listing(fence: Token) -> Step:
    """Raises ValueError for one of which a reader would not know what to do with it."""
    language, (caption, text) = LISTING.match(fence.info), captioned(fence.content)
    match language and language["language"], caption:
        case "console", terminal:
            return Console(terminal or FIRST, tuple(exchanges(text)))
        case "text", "Browser":
            return See(text)
        case "python", str(path):
            return File(path.removesuffix(AT_ITS_END), text, path.endswith(AT_ITS_END))
    raise ValueError(f"What is to be done with it? {fence.info}, {caption}:\n{text}")


def captioned(content: str) -> tuple[str | None, str]:
    options: dict[str, str] = {}
    while found := OPTION.match(content):
        options[found["name"]] = found["value"]
        content = content[found.end() :]
    return options.get("caption"), content.lstrip("\n") if options else content


def exchanges(text: str) -> Iterator[Exchange]:
    """What is seen before anything is typed is of what was typed in a listing before."""
    prompt = typed = ""
    shown: list[str] = []
    for line in text.splitlines(keepends=True):
        found = TYPED.fullmatch(line.rstrip("\n"))
        if not found:
            shown.append(line)
            continue
        if typed or shown:
            yield Exchange(prompt, typed, "".join(shown))
        prompt, typed, shown = found["prompt"] or "", found["typed"] or found["keys"], []
    yield Exchange(prompt, typed, "".join(shown))


def in_browser(tokens: list[Token]) -> Iterator[Step]:
    answers = tuple(token.content for token in tokens if token.type == "code_inline")
    bold = False
    for token in tokens:
        if token.type == "link_open" and str(token.attrGet("href")).startswith(OWN_MACHINE):
            yield Open(str(token.attrGet("href")), answers)
        elif token.type in ("strong_open", "strong_close"):
            bold = token.type == "strong_open"
        elif bold and token.type == "text":
            yield Press(token.content)


def pattern(shown: str) -> str:
    """What matches a text that was seen: any words for ``...``, any lines where a line is that."""
    return "".join(map(line_pattern, tidied(shown).splitlines(keepends=True)))


def line_pattern(line: str) -> str:
    if line.strip() == "...":
        return r"(?:[^\n]*\n)*?"
    found, as_good, at = [], [*VARIES.values()], 0
    for each in ANY_OF_THEM.finditer(line):
        found += [re.escape(line[at : each.start()]), as_good[each.lastindex - 1]]
        at = each.end()
    return "".join([*found, re.escape(line[at:])])


def tidied(text: str) -> str:
    """How wide a column is, is no matter."""
    return re.sub(r" +\n", "\n", re.sub(r"[ \t]+", " ", text))
