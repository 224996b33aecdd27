"""Draw the screen of `locks watch` as SVG."""

from io import StringIO

from django.core.management import BaseCommand
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from django_redislock import locks
from django_redislock.management.screen import Eyes, Screen
from django_redislock.management.watching import Watcher
from tests.commands import TerminalStream

COLUMNS, ROWS = 120, 20

BLACK, WHITE = (19, 20, 22), (230, 232, 235)
THEME = TerminalTheme(
    BLACK,
    WHITE,
    [
        *(BLACK, (255, 123, 114), (95, 194, 126), (224, 179, 80)),
        *((106, 167, 232), (210, 150, 230), (98, 200, 210), WHITE),
    ],
)

# Rich's own format loads fonts from the network.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="The screen of locks watch: active locks with their holders, leases and waiters, \
and the latest events below">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; \
font-size: {char_height}px; white-space: pre }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">\
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def watch_svg() -> str:
    stream = TerminalStream()
    eyes = Eyes(Watcher(locks, None, 100), 2.0)
    eyes._look_once()
    drawn = Screen(BaseCommand(stdout=stream, force_color=True), eyes).draw(COLUMNS, ROWS)
    console = Console(
        record=True, file=StringIO(), width=COLUMNS, highlight=False, markup=False, emoji=False
    )
    console.print(drawn)
    return console.export_svg(
        title="manage.py locks watch", theme=THEME, code_format=FORMAT, unique_id="watch"
    )
