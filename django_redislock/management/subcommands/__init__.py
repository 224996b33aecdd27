"""The subcommands of `manage.py locks`. Each module has `HELP`, `add_arguments` and `run`."""

from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandParser

from django_redislock.manager import LockManager

from . import check, history, list, release, run, show, watch


class Subcommand(Protocol):
    HELP: str

    def add_arguments(self, parser: CommandParser) -> None: ...

    def run(self, command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None: ...


SUBCOMMANDS: dict[str, Subcommand] = {
    "list": list,
    "show": show,
    "release": release,
    "watch": watch,
    "history": history,
    "run": run,
    "check": check,
}
