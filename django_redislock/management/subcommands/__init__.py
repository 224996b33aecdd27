"""The subcommands of `manage.py locks`. Each module has `HELP`, `add_arguments` and `run`."""

from . import check, history, list, release, run, show

SUBCOMMANDS = {
    each.__name__.rpartition(".")[-1]: each for each in (list, show, release, history, run, check)
}
