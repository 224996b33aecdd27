"""A reader, who does step by step what a page says and compares what it shows."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.tools import wait_until

from .browser import Browser
from .page import FIRST, Console, File, Open, Press, See, Step, pattern
from .terminal import Terminal

Instead = Callable[[str], str | None]
"""What is typed instead of a line; None: neither that nor what it shows."""


class Reader:
    """Begins in `folder`, in which each terminal opens. All ends with ``with``."""

    def __init__(
        self, folder: Path, environment: dict[str, str], instead: Instead = lambda line: line
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._instead = instead
        self._browser = Browser()
        self._ends = ExitStack()
        self.terminals: dict[str, Terminal] = {}

    def do(self, step: Step) -> None:
        match step:
            case Console():
                self._use(self.terminal(step.terminal), step)
            case File():
                self._write(self.terminal(FIRST).folder / step.path, step)
            case Open():
                self._browser.open(step.address)
                if step.answers:
                    self._browser.fill_in(*step.answers)
            case Press():
                self._browser.press(step.label)
            case See():
                self._look_for(re.compile(pattern(" ".join(step.text.split()))))

    def terminal(self, name: str) -> Terminal:
        if name not in self.terminals:
            terminal = self.terminals[name] = Terminal(self._folder, self._environment)
            self._ends.callback(terminal.close)
        return self.terminals[name]

    def _use(self, terminal: Terminal, console: Console) -> None:
        for each in console.exchanges:
            typed = self._instead(each.typed)
            if typed is None:
                continue
            if each.is_keys:
                terminal.press(typed)
            elif typed:
                terminal.type(typed, after=each.prompt)
            terminal.expect(each.shown)
        terminal.settle(goes_on=console.goes_on)

    def _write(self, path: Path, file: File) -> None:
        assert path.exists() or not file.added
        with path.open("a" if file.added else "w") as stream:
            stream.write(file.text)

    def _look_for(self, words: re.Pattern[str]) -> None:
        """As often as it takes: what is to be seen there may be on its way."""

        def seen() -> bool:
            found = words.search(self._browser.page.words)
            if not found:
                self._browser.reload()
            return bool(found)

        try:
            wait_until(seen, timeout=60, interval=0.2)
        except AssertionError as error:
            raise AssertionError(
                f"not seen: {words.pattern}\n{self._browser.page.words}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()
