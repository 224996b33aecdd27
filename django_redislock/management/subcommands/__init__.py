"""The subcommands of `manage.py locks`. Each module has `HELP`, `add_arguments` and `run`."""

from types import ModuleType

from . import check, history, list, release, run, show, watch

SUBCOMMANDS: dict[str, ModuleType] = {
    "list": list,
    "show": show,
    "release": release,
    "watch": watch,
    "history": history,
    "run": run,
    "check": check,
}
