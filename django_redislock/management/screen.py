"""`locks watch` on a full screen. The only module that needs rich, and so imported late."""

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import BaseCommand
from django.core.management.color import Style
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from django_redislock.lock_state import primary_holder
from django_redislock.management.formatting import short_moment_text, trouble_first
from django_redislock.management.lines import paint_of
from django_redislock.management.output import Paint, encodable, plain
from django_redislock.management.watching import (
    Change,
    Look,
    Watcher,
    changes,
    ended,
    try_look,
)
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.text import age, holder_text, printable, short_duration, task_text

REDRAW = 0.25
BAR = 10
COLUMNS = {"NAME": 0, "HOLDER": 64, "TASK": 80, "AGE": 0, "LEASE": 0, "WAITERS": 0}
"""With the width of a terminal that has room for it."""
NAME, HOLDER = 10, 14
"""So wide they may be on any terminal that has the room; on a wide one a holder has a fifth."""
SUSPEND = b"\x1a"
"""The byte that Ctrl-Z sends."""

KEPT = 200
"""Lines of what happened that the largest screen shows."""


class Eyes(threading.Thread):
    """Reads the locks in a thread, so that a slow Redis does not block the screen."""

    def __init__(self, watcher: Watcher, interval: float) -> None:
        super().__init__(name="locks watch", daemon=True)
        self.watcher = watcher
        self.interval = interval
        self.closed = threading.Event()
        self.look: Look | None = None
        self.seen_at = time.monotonic()
        self.trouble = ""
        self.error: BaseException | None = None
        self.happened: deque[Change] = deque(maxlen=KEPT)

    def run(self) -> None:
        try:
            while True:
                self._look_once()
                if self.closed.wait(self.interval):
                    return
        except BaseException as error:  # noqa: BLE001  told by the thread that draws
            self.error = error

    def _look_once(self) -> None:
        look, self.trouble = try_look(self.watcher.look)
        if look is None:
            return
        if self.look is None:
            self.happened.extend(map(ended, reversed(look.events)))
        else:
            self.happened.extend(changes(self.look, look))
        self.look, self.seen_at = look, time.monotonic()


class Screen:
    """Draws what the eyes see."""

    def __init__(self, command: BaseCommand, eyes: Eyes) -> None:
        self.command = command
        self.eyes = eyes
        self.stream = command.stdout
        self.style: Style = command.style
        fits = encodable("█░…", self.stream) == "█░…"
        self.full, self.empty = ("█", "░") if fits else ("#", ".")
        self.overflow = "ellipsis" if fits else "crop"

    def draw(self, width: int, height: int) -> RenderableType:
        look, since = self.eyes.look, time.monotonic() - self.eyes.seen_at
        events = max(3, height // 4)
        rows = max(height - events - 4, 1)
        infos = self._ordered(look)
        return Group(
            self._line(self._summary(look), self.style.MIGRATE_LABEL),
            self._line(*self._state(since)),
            self._table(infos[:rows], since, width),
            *[Text()] * (rows - len(infos[:rows])),
            self._line(self._rest(look, infos[:rows])),
            *self._events(events),
        )

    def _ordered(self, look: Look | None) -> list[LockInfo]:
        # Not by the end of the lease, or locks would change places with each renewal.
        infos = look.page.infos if look else ()
        return sorted(infos, key=lambda info: (*trouble_first(info), info.name))

    def _summary(self, look: Look | None) -> str:
        if look is None:
            return "locks watch"
        infos = look.page.infos
        stale = sum(info.is_stale for info in infos)
        contended = sum(bool(info.waiters) for info in infos)
        waiters = sum(info.waiters for info in infos)
        waits = f"{waiters} waiting for {contended}" if waiters else "nobody waits"
        told = f"{stale} stale, {waits}"
        total = "1 lock" if look.page.total == 1 else f"{look.page.total} locks"
        if look.is_whole:
            return f"{total} held, {told}"
        return f"{total} held; of the {len(infos)} whose leases end first {told}"

    def _state(self, since: float) -> tuple[str, Paint]:
        if self.eyes.trouble:
            seen = f"; seen {short_duration(since)} ago" if self.eyes.look else ""
            return f"Redis is away{seen}: {self.eyes.trouble}", self.style.ERROR
        alias, every = self.eyes.watcher.manager.alias, f"{self.eyes.interval:g}s"
        pattern = self.eyes.watcher.pattern
        which = f" matching {printable(pattern)}" if pattern else ""
        return f"on {printable(alias)}{which}, every {every}; q ends it", plain

    def _rest(self, look: Look | None, shown: list[LockInfo]) -> str:
        more = look.page.total - len(shown) if look else 0
        return f"and {more} more" if more > 0 else ""

    def _table(self, infos: list[LockInfo], since: float, width: int) -> Table:
        table = Table(box=None, expand=True, pad_edge=False, header_style=self._rich(plain))
        shown = [name for name, least in COLUMNS.items() if width >= least]
        if "TASK" in shown and not any(_has_task(info) for info in infos):
            shown.remove("TASK")
        for name in shown:
            table.add_column(
                name,
                no_wrap=True,
                overflow=self.overflow,  # type: ignore[arg-type]
                ratio={"NAME": 3, "TASK": 2}.get(name),
                width=NAME if name == "NAME" else None,  # the minimum, because it has a ratio
                min_width=None if name in ("NAME", "TASK") else 5,
                max_width=max(HOLDER, width // 5) if name == "HOLDER" else None,
                justify="right" if name in ("AGE", "WAITERS") else "left",
            )
        for info in infos:
            cells = dict(zip(COLUMNS, self._cells(info, since), strict=True))
            table.add_row(*[cells[name] for name in shown])
        return table

    def _cells(self, info: LockInfo, since: float) -> Iterator[Text]:
        held = primary_holder(info)
        name_paint = self.style.ERROR if info.is_stale else plain
        yield self._text(printable(info.name), name_paint)
        yield self._text(f"({info.state})" if held is None else _holder(info, held))
        yield self._text(task_text(held) if held else "")
        yield self._text(short_duration(age(held) + since) if held else "")
        yield self._lease(held, since) if held else Text()
        waiters = str(info.waiters) if info.waiters else "-"
        yield self._text(waiters, self.style.WARNING if info.waiters else plain)

    def _lease(self, held: Holding, since: float) -> Text:
        left = max(held.ttl - since, 0.0)
        if not held.timeout:
            return self._text(f"{'':{BAR}} {short_duration(left):7} cooldown")
        full = min(round(left / held.timeout * BAR), BAR)
        bar = self.full * full + self.empty * (BAR - full)
        paint, word = self._verdict(held)
        return self._text(f"{bar} {short_duration(left):7}{word}".rstrip(), paint)

    def _verdict(self, held: Holding) -> tuple[Paint, str]:
        if held.is_stale:
            return self.style.ERROR, " stale"
        return (self.style.SUCCESS, "") if held.renewed else (self.style.WARNING, " ends")

    def _events(self, height: int) -> Iterator[Text]:
        latest = list(self.eyes.happened)[-height:]
        yield from [Text()] * (height - len(latest))
        for change in latest:
            yield self._line(
                change.line(short_moment_text(change.at)), paint_of(self.command, change)
            )

    def _line(self, text: str, paint: Paint = plain) -> Text:
        line = self._text(text, paint)
        line.no_wrap, line.overflow = True, self.overflow  # type: ignore[assignment]
        return line

    def _text(self, text: str, paint: Paint = plain) -> Text:
        # No markup of rich's is read, and no control sequence is left in it.
        return Text(encodable(text, self.stream), style=self._rich(paint))

    def _rich(self, paint: Paint) -> str:
        """Return rich's name for one of Django's colours."""
        spans = Text.from_ansi(paint("x")).spans
        return str(spans[0].style) if spans else ""


def watch_screen(command: BaseCommand, watcher: Watcher, interval: float) -> None:
    """Show it until q, a signal, or the end of the keyboard; then the terminal is as before, and
    it is so while Ctrl-Z has it stopped."""
    eyes = Eyes(watcher, interval)
    screen = Screen(command, eyes)
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    eyes.start()
    try:
        while show(screen, console) == SUSPEND:
            os.kill(0, signal.SIGTSTP)  # stops the process group; `fg` continues here
    finally:
        eyes.closed.set()


def show(screen: Screen, console: Console) -> bytes:
    """Show it until a key is pressed that ends or suspends it, and return that."""
    with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while screen.eyes.error is None:
            live.update(screen.draw(*console.size), refresh=True)
            key = pressed(keys, REDRAW)
            if key in (b"q", b"Q", b"\x03", SUSPEND, b""):
                return key
    raise screen.eyes.error


@contextmanager
def keyboard() -> Iterator[int | None]:
    """The keyboard, told key by key and without an echo; None if there is none."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    # Or the terminal would stop the process where it stands.
    modes = termios.tcgetattr(descriptor)
    modes[6][termios.VSUSP] = bytes([os.fpathconf(descriptor, "PC_VDISABLE")])
    termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed(keys: int | None, seconds: float) -> bytes | None:
    """Return the key that is pressed within so many seconds, b"" at the keyboard's end."""
    if keys is None:
        time.sleep(seconds)
        return None
    ready, _, _ = select.select([keys], [], [], seconds)
    return os.read(keys, 1) if ready else None


def _has_task(info: LockInfo) -> bool:
    held = primary_holder(info)
    return bool(held and task_text(held))


def _holder(info: LockInfo, held: Holding) -> str:
    others = len(info.holders) - 1
    return f"{holder_text(held)} (+{others})" if others else holder_text(held)
