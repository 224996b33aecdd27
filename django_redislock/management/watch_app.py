"""The full screen of `locks watch`. Only this module needs textual."""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from heapq import nsmallest
from io import StringIO
from typing import ClassVar

from django.core.management.base import BaseCommand, CommandError
from django.utils import translation
from redis.exceptions import RedisError
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from ..health import unavailable_text
from ..lock_state import urgency
from ..manager import LockManager
from ..names import matcher, search_pattern
from ..snapshots import Event, LockInfo, Page
from ..text import clock_text, error_text, printable, short_duration
from . import formatting
from .output import table_lines
from .subcommands import release, show
from .subcommands.list import no_locks_text

STYLES = {"WARNING": "#e0b350", "ERROR": "bold #ff7b72"}
"""Colours that can be read on a selected line, too."""

MAX_READ, MAX_LOCKS, MAX_EVENTS = 2000, 200, 100
"""How many locks a read asks for, how many of them are shown, and how many of the latest events a
read asks for. The screen shows only the events of matching locks."""


class Dialog(ModalScreen[bool]):
    """A text over the locks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "Back", key_display="Esc"),
        Binding("n,q,enter", "dismiss(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.text, markup=False)
        yield Footer()


class Question(Dialog):
    """It returns whether the user pressed `y`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "dismiss(True)", "Yes, release")]


class LockList(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Details", key_display="Enter")
    ]


class WatchApp(App[Exception]):
    """Shows the locks again and again. It returns the unexpected error that ended it, if any.

    A thread makes the requests to Redis, so that a slow server does not block the keyboard.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Input > .input--placeholder { color: $foreground 80%; }
    LockList { height: 1fr; scrollbar-size-vertical: 1; }
    LockList > .option-list--option-highlighted, LockList:focus > .option-list--option-highlighted
    { background: $foreground 8%; text-style: bold; }
    #events { height: 25%; min-height: 3; border-top: solid $foreground 80%; }
    #header { text-style: bold; text-wrap: nowrap; }
    Dialog { align: center middle; }
    Dialog VerticalScroll { width: 90%; height: auto; max-height: 90%; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "focus('search')", "Search", key_display="/"),
        Binding("r", "release", "Release"),
        Binding("q", "quit", "Quit"),
        Binding("escape", "focus('locks')", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, manager: LockManager, pattern: str | None, interval: float) -> None:
        super().__init__()
        self.manager, self.pattern, self.interval = manager, pattern, interval
        self.infos: list[LockInfo] = []
        self.read_at = time.monotonic()
        self.read_now = asyncio.Event()
        # A query would not find the widgets under a dialog.
        self.summary = Static("locks watch", markup=False)
        shown = printable(pattern or "")
        self.search_field = Input(shown, "All locks. / searches.", id="search", compact=True)
        self.header = Static(id="header", markup=False)
        self.lock_list = LockList(markup=False, id="locks", compact=True)
        self.events = Static(id="events", markup=False)

    def compose(self) -> ComposeResult:
        yield from (self.summary, self.search_field, self.header)
        yield from (self.lock_list, self.events, Footer())

    def on_mount(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.lock_list.focus()
        self.keep_reading()

    def on_resize(self) -> None:
        self.show_locks(self.infos)

    @work
    async def keep_reading(self) -> None:
        while True:
            try:
                page = await asyncio.to_thread(self.manager.page, self.pattern, stop=MAX_READ)
                events = await asyncio.to_thread(self.manager.history, limit=MAX_EVENTS)
            except RedisError as error:
                self.show_trouble(error)
            except Exception as error:  # noqa: BLE001  the command raises it
                self.exit(error)
                return
            else:
                self.show(page, events)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.read_now.wait(), self.interval)
            self.read_now.clear()

    def show_trouble(self, error: RedisError) -> None:
        text = error_text(unavailable_text(self.manager.alias, error))
        if self.infos:
            text = f"Read {short_duration(time.monotonic() - self.read_at)} ago. {text}"
        self.summary.update(Text(text, STYLES["ERROR"]))

    def show(self, page: Page, events: Sequence[Event]) -> None:
        stale = sum(info.is_stale for info in page.infos)
        waiters = sum(info.waiters for info in page.infos)
        infos = nsmallest(MAX_LOCKS, page.infos, key=urgency)
        read = f" of the first {MAX_READ:,}" if page.total > MAX_READ else ""
        self.summary.update(
            f"{len(infos)} of {page.total} locks, {stale} stale, {waiters} waiting{read}. "
            f"On {printable(self.manager.alias)}, every {self.interval:g}s."
        )
        self.read_at = time.monotonic()
        self.show_locks(infos)
        matches = matcher(self.pattern)
        shown = [event for event in events if matches(event.name)]
        rows = [formatting.event_cells(event, clock_text) for event in shown]
        header, *lines = table_lines([formatting.EVENT_HEADER, *rows], self.size.width)
        text = Text(f"{header}\n", "bold", no_wrap=True)
        for line, event in zip(lines, shown, strict=True):
            style = STYLES.get(formatting.SEVERITIES.get(event.outcome, ""), "not bold")
            text.append(f"{line}\n", style)
        self.events.update(text)

    def show_locks(self, infos: list[LockInfo]) -> None:
        """Show the locks, and keep the selection."""
        selected, index = self.selected, self.lock_list.highlighted or 0
        room = self.size.width - 1  # one column is for the scroll bar
        header, *lines = table_lines([formatting.HEADER, *map(formatting.lock_cells, infos)], room)
        self.header.update(header if lines else no_locks_text(self.pattern))
        self.infos = infos
        self.lock_list.set_options(
            Option(Text(line, STYLES["ERROR"] if info.is_stale else "", no_wrap=True))
            for line, info in zip(lines, infos, strict=True)
        )
        names = [info.name for info in infos]
        if selected and selected.name in names:
            index = names.index(selected.name)
        self.lock_list.highlighted = min(index, len(names) - 1) if names else None

    @property
    def selected(self) -> LockInfo | None:
        index = self.lock_list.highlighted
        return None if index is None else self.infos[index]

    @work
    async def on_option_list_option_selected(self) -> None:
        if info := self.selected:
            self.push_screen(Dialog(await asyncio.to_thread(self.details, info.name)))

    @translation.override(None)  # The command has it, but a thread does not inherit it.
    def details(self, name: str) -> str:
        out = StringIO()
        try:
            options = {"name": name, "format": "text"}
            show.run(BaseCommand(out, no_color=True), self.manager, options)
        except (CommandError, RedisError) as error:
            out.write(error_text(error))
        return out.getvalue()

    @work
    async def action_release(self) -> None:
        if (info := self.selected) is None or not info.holders:
            return
        holds = [release.SelectedHold.of(info, holding) for holding in info.holders]
        with translation.override(None):
            question = "\n".join([*release.explanation(holds), release.question(holds)])
        if await self.push_screen_wait(Question(question)):
            failures = await asyncio.to_thread(
                release.release, self.manager, holds, lambda _: None
            )
            self.read_now.set()
            if failures:
                self.notify("\n".join(failures), severity="error", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.pattern = search_pattern(event.value)
        self.read_now.set()
        self.lock_list.focus()
