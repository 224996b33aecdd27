"""``manage.py gallery``: run the exhibits and report their results."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from testproject.gallery import report
from testproject.gallery.actors import actor_server_on
from testproject.gallery.exhibit import Exhibit, Result, run_exhibit
from testproject.gallery.exhibits import ALL
from testproject.stage import DemoError, set_up

TRIALS = 20


class Command(BaseCommand):
    help = (
        "Run common lock algorithms and this package in situations that break the common one."
        " Starts its own server."
        " Exit status: 0 all results as expected; 1 unexpected result or failure; 2 usage error."
    )
    # The command does not use the site's configuration.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        names = ", ".join(exhibit.name for exhibit in ALL)
        add("names", nargs="*", type=_exhibit, metavar="NAME", help=f"Run only: {names}.")
        add("--trials", type=_trials, default=TRIALS, metavar="N", help=f"Default: {TRIALS}.")
        add("--json", action="store_true", help="Write only JSON to stdout.")
        add("--write", type=_page, metavar="PAGE", help="Write the table into this page.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["write"] and options["names"]:
            raise CommandError("--write needs a run of all exhibits", returncode=2)
        try:
            everything = list(self._found(options))
        except DemoError as error:
            raise CommandError(f"The gallery failed: {error}") from None
        except KeyboardInterrupt:
            sys.exit(130)
        if options["json"]:
            self.stdout.write(report.json_of(everything))
        wrong = [found.exhibit.name for found in everything if not found.is_as_expected]
        if wrong:
            raise CommandError(f"Not as expected: {', '.join(wrong)}")
        if options["write"]:
            report.write(options["write"], everything)

    def _found(self, options: dict[str, Any]) -> Iterator[Result]:
        with set_up() as stage, actor_server_on(stage) as actor_server:
            for number, exhibit in enumerate(ALL, 1):
                if exhibit in options["names"] or not options["names"]:
                    found = run_exhibit(actor_server, number, exhibit, options["trials"])
                    if not options["json"]:
                        self.stdout.write(f"{report.text_of(found)}\n")
                        self.stdout.flush()
                    yield found


def _exhibit(name: str) -> Exhibit:
    for exhibit in ALL:
        if exhibit.name == name:
            return exhibit
    names = ", ".join(exhibit.name for exhibit in ALL)
    raise ArgumentTypeError(f"{name!r} is not an exhibit. Choose from: {names}")


def _trials(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _page(text: str) -> Path:
    page = Path(text)
    try:
        content = page.read_text() if page.is_file() else ""
    except UnicodeDecodeError:
        content = ""
    if report.END not in content.partition(report.BEGIN)[2]:
        raise ArgumentTypeError(f"{text!r} does not contain the gallery's markers")
    return page
