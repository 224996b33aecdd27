"""``manage.py gallery``: let the exhibits happen, and tell what was found."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from testproject.gallery import telling
from testproject.gallery.actors import home_on
from testproject.gallery.exhibit import Exhibit, Found, find
from testproject.gallery.exhibits import ALL
from testproject.stage import Failed, set_up

TRIALS = 20


class Command(BaseCommand):
    help = (
        "How locks go wrong: algorithms that articles teach, each beside ours in the situation"
        " that breaks it. Starts a server of its own."
        " Exit status: 0 all was as told; 1 something was not; 2 usage."
    )
    # It uses nothing of the site that runs it.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        names = ", ".join(exhibit.name for exhibit in ALL)
        add("names", nargs="*", type=_exhibit, metavar="NAME", help=f"These alone, of: {names}.")
        add("--trials", type=_trials, default=TRIALS, metavar="N", help=f"Default: {TRIALS}.")
        add("--json", action="store_true", help="Write JSON to stdout, and nothing else.")
        add("--write", type=_page, metavar="PAGE", help="Write the table into that page.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["write"] and options["names"]:
            raise CommandError("--write is for all exhibits", returncode=2)
        try:
            everything = list(self._found(options))
        except Failed as error:
            raise CommandError(f"The gallery failed: {error}") from None
        except KeyboardInterrupt:
            sys.exit(130)
        if options["json"]:
            self.stdout.write(telling.json_of(everything))
        wrong = [found.exhibit.name for found in everything if not found.is_as_told]
        if wrong:
            raise CommandError(f"Not as told: {', '.join(wrong)}")
        if options["write"]:
            telling.write(options["write"], everything)

    def _found(self, options: dict[str, Any]) -> Iterator[Found]:
        with set_up() as stage, home_on(stage) as home:
            for number, exhibit in enumerate(ALL, 1):
                if exhibit in options["names"] or not options["names"]:
                    found = find(home, number, exhibit, options["trials"])
                    if not options["json"]:
                        self.stdout.write(f"{telling.text_of(found)}\n")
                        self.stdout.flush()
                    yield found


def _exhibit(name: str) -> Exhibit:
    for exhibit in ALL:
        if exhibit.name == name:
            return exhibit
    names = ", ".join(exhibit.name for exhibit in ALL)
    raise ArgumentTypeError(f"{name!r} is none of: {names}")


def _trials(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _page(text: str) -> Path:
    page = Path(text)
    try:
        told = page.read_text() if page.is_file() else ""
    except UnicodeDecodeError:
        told = ""
    if telling.END not in told.partition(telling.BEGIN)[2]:
        raise ArgumentTypeError(f"{text!r} is no page with the gallery's markers")
    return page
