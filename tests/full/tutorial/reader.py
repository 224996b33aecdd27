"""A simulated reader, who executes the steps of a page in order and compares the output.

The reader uses these parts of a page:

- a ``console`` listing: The reader types lines that begin with a prompt, and expects the other
  lines. The caption names the terminal; the default is the first terminal. If the listing ends
  with ``...``, its last program keeps running.
- a ``python`` listing: The reader writes a file, named by its caption. ``, at its end`` appends.
- a link to the reader's own machine: The reader opens it in the browser, and fills code in the
  same paragraph into the login form.
- bold text: The reader clicks on the link or button of that name.
- a ``text`` listing with the caption ``Browser``: The reader expects it in the browser.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.tools import wait_until

from .browser import Browser
from .patterns import pattern
from .terminal import Terminal

FIRST = "First terminal"
AT_ITS_END = ", at its end"
OWN_MACHINE = "http://127.0.0.1:"

LISTING = re.compile(r"(?:\{code-block\} )?(\w+)")
CAPTION = re.compile(r":caption: (.+)\n\n?")
TYPED = re.compile(r"(\$ |>>> )(.*)")


class Reader:
    """A reader with several terminals in `folder`. Use it as a context manager.

    `instead` returns a replacement for a typed line, or None to skip the line and its output.
    """

    def __init__(
        self, folder: Path, environment: dict[str, str], instead: Callable[[str], str | None]
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._instead = instead
        self._browser = Browser()
        self._ends = ExitStack()
        self.terminals: dict[str, Terminal] = {}

    def read(self, page: str) -> None:
        for token in MarkdownIt().parse(page):
            if token.type == "fence":
                self._do_listing(token)
            elif token.type == "inline":
                self._use_browser(token.children or [])

    def _do_listing(self, fence: Token) -> None:
        [language] = LISTING.match(fence.info).groups()
        text, caption = fence.content, None
        if found := CAPTION.match(text):
            text, caption = text[found.end() :], found[1].replace("\\", "")  # which Markdown needs
        match language, caption:
            case "console", terminal:
                self._use_terminal(self._terminal(terminal or FIRST), text)
            case "text", "Browser":
                self._wait_for_words(pattern(" ".join(text.split())))
            case "python", str(file):
                path = self._terminal(FIRST).folder / file.removesuffix(AT_ITS_END)
                assert path.exists() or not file.endswith(AT_ITS_END)
                with path.open("a" if file.endswith(AT_ITS_END) else "w") as stream:
                    stream.write(text)
            case _:
                raise ValueError(f"a reader does not know what to do with {fence.info}:\n{text}")

    def _terminal(self, name: str) -> Terminal:
        if name not in self.terminals:
            terminal = self.terminals[name] = Terminal(self._folder, self._environment)
            self._ends.callback(terminal.close)
        return self.terminals[name]

    def _use_terminal(self, terminal: Terminal, text: str) -> None:
        is_skipped = False
        for line in text.splitlines(keepends=True):
            found = TYPED.fullmatch(line.rstrip("\n"))
            if not found:
                if not is_skipped:
                    terminal.expect(line)
                continue
            prompt, command = found.groups()
            typed = self._instead(command)
            is_skipped = typed is None
            if typed is not None:
                terminal.type(typed, after=prompt)
        terminal.settle(goes_on=text.splitlines()[-1] == "...")

    def _use_browser(self, tokens: list[Token]) -> None:
        answers = [token.content for token in tokens if token.type == "code_inline"]
        is_bold = False
        for token in tokens:
            address = str(token.attrGet("href"))
            if token.type == "link_open" and address.startswith(OWN_MACHINE):
                self._browser.open(address)
                if answers:
                    self._browser.fill_in(*answers)
            elif token.type in ("strong_open", "strong_close"):
                is_bold = token.type == "strong_open"
            elif is_bold and token.type == "text":
                self._browser.press(token.content)

    def _wait_for_words(self, words: str) -> None:
        """Reload the page in the browser until it has the words."""

        def is_shown() -> bool:
            if re.search(words, self._browser.words):
                return True
            self._browser.reload()
            return False

        try:
            wait_until(is_shown, timeout=60, interval=0.2)
        except AssertionError as error:
            raise AssertionError(f"no {words!r} in:\n{self._browser.words}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()
