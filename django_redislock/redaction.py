"""Remove credentials from the texts of errors."""

import re

HIDDEN = "***"
"""The replacement for hidden text."""

_QUOTED = re.compile(
    r"""
    # The user name and password in an address. A separator and a scheme begin the next address.
    (?<=://)(?:(?![\s,;'"][\w+]+://).)*(?=@)
    | <[\w.]+\(.*\)>                    # a redis-py client, whose repr can have a password
    | (?<=args\ beginning\ with:\ ).*   # an unknown command, such as HELLO or AUTH
    | (?<=\bUser\ ).*(?=\ has\ no\ permissions)
    """,
    re.DOTALL | re.VERBOSE,
)
"""It matches as much as possible, because a password can have any character."""


def without_secrets(text: object) -> str:
    """Return `text` with ``***`` instead of user names, passwords and clients."""
    return _QUOTED.sub(HIDDEN, str(text))
