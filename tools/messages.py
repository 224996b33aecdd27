"""``make messages``: update the translation catalogs from the source texts, and compile them.

This calls Django's makemessages and compilemessages, which need GNU gettext.
"""

import re
from contextlib import chdir
from pathlib import Path

from django.core.management import call_command
from django.core.management.commands import makemessages

from tests import programs
from tests.tools import ROOT

PACKAGE = ROOT / "django_redislock"

LANGUAGES = {"de": "de", "zh_Hans": "zh-hans"}
"""The folder of each catalog, and Django's code of its language."""

DATE = re.compile(r'^"POT-Creation-Date:.*\n', re.MULTILINE)


class Command(makemessages.Command):
    """Update catalogs without guesses for new texts, and without a date."""

    msgmerge_options = [  # noqa: RUF012  Django adds a list to it
        *makemessages.Command.msgmerge_options,
        "--no-fuzzy-matching",
    ]

    def write_po_file(self, potfile: str, locale: str) -> None:
        super().write_po_file(potfile, locale)
        path = Path(potfile).parent / locale / "LC_MESSAGES" / "django.po"
        path.write_text(DATE.sub("", path.read_text()))


def extract(package: Path) -> None:
    """Update each catalog with the texts of the package's sources."""
    _require_gettext()
    options = {"no_location": True, "no_obsolete": True, "verbosity": 0}
    with chdir(package):
        call_command(Command(), locale=list(LANGUAGES), **options)


def compile_all(folder: Path) -> None:
    """Compile each catalog in `folder`."""
    _require_gettext()
    with chdir(folder):
        call_command("compilemessages", verbosity=0)


def _require_gettext() -> None:
    for program in programs.GETTEXT:
        programs.find(program)


def catalog(package: Path, language: str) -> Path:
    """Return the path of a language's catalog."""
    return package / "locale" / language / "LC_MESSAGES" / "django.po"


if __name__ == "__main__":
    extract(PACKAGE)
    compile_all(PACKAGE)
