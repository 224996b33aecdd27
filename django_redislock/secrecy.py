"""Texts of others without what it takes to get into a server, which errors quote."""

import re

HIDDEN = "***"
"""What stands for what is not to be shown."""

_QUOTED = re.compile(
    r"""
    (?<=://).*(?=@)                     # who gets in, and by what password, in an address
    | <[\w.]+\(.*\)>                    # a client of redis-py, some of which show all they know
    | (?<=args\ beginning\ with:\ ).*   # what a server was sent and does not know: HELLO, AUTH
    | (?<=\bUser\ ).*(?=\ has\ no\ permissions)
    """,
    re.DOTALL | re.VERBOSE,
)
"""As much as may belong to it: a password can have any character in it."""


def without_secrets(text: object) -> str:
    return _QUOTED.sub(HIDDEN, str(text))
