"""``make messages``: brings the catalogs up to date with the texts there are, and compiles them.

It is Django's makemessages and compilemessages, so GNU gettext has to be there.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path

from django.core.management import call_command
from django.core.management.commands import makemessages

from . import programs
from .tools import ROOT

PACKAGE = ROOT / "django_redislock"

LANGUAGES = {"de": "de", "zh_Hans": "zh-hans"}
"""The folders of the catalogs, and what Django calls their languages."""

DATE = re.compile(r'^"POT-Creation-Date:.*\n', re.MULTILINE)

KEYWORD = re.compile(r'^(msgctxt|msgid|msgid_plural|msgstr)(?:\[\d+\])? (".*")$')


class Command(makemessages.Command):
    """No guesses at what a new text could be, and no date that changes where no text does."""

    msgmerge_options = [  # noqa: RUF012  Django adds a list to it
        *makemessages.Command.msgmerge_options,
        "--no-fuzzy-matching",
    ]

    def write_po_file(self, potfile: str, locale: str) -> None:
        super().write_po_file(potfile, locale)
        path = Path(potfile).parent / locale / "LC_MESSAGES" / "django.po"
        path.write_text(DATE.sub("", path.read_text()))


def extract(package: Path) -> None:
    """Let each catalog have the texts that the package's sources have, and no other."""
    _require_gettext()
    options = {"no_location": True, "no_obsolete": True, "verbosity": 0}
    with chdir(package):
        call_command(Command(), locale=list(LANGUAGES), **options)


def _require_gettext() -> None:
    for program in programs.GETTEXT:
        programs.find(program)


def compile_all(folder: Path) -> None:
    """Compile each catalog in it, as Django does."""
    _require_gettext()
    with chdir(folder):
        call_command("compilemessages", verbosity=0)


def catalog(package: Path, language: str) -> Path:
    """The catalog of a language, as its translators edit it."""
    return package / "locale" / language / "LC_MESSAGES" / "django.po"


@dataclass
class Message:
    """An entry of a catalog."""

    context: str | None = None
    id: str = ""
    plural: str | None = None
    texts: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)

    @property
    def key(self) -> tuple[str | None, str]:
        return self.context, self.id


def messages(path: Path) -> list[Message]:
    """The entries of a catalog, with its header, whose id is empty, first."""
    blocks = re.split(r"\n{2,}", path.read_text().strip())
    return [_message(block.split("\n")) for block in blocks]


def _message(lines: list[str]) -> Message:
    message = Message()
    for keyword, text in _fields(lines, message.flags):
        if keyword == "msgstr":
            message.texts.append(text)
        elif keyword == "msgctxt":
            message.context = text
        elif keyword == "msgid":
            message.id = text
        else:
            message.plural = text
    return message


def _fields(lines: list[str], flags: set[str]) -> Iterator[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("#,"):
            flags.update(line[2:].replace(" ", "").split(","))
        elif match := KEYWORD.match(line):
            found.append((match[1], ast.literal_eval(match[2])))
        elif line.startswith('"'):
            keyword, text = found.pop()
            found.append((keyword, text + ast.literal_eval(line)))
    return iter(found)


if __name__ == "__main__":
    extract(PACKAGE)
    compile_all(PACKAGE)
