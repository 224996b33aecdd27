"""Remove credentials from the texts of errors, and make them short."""

import re
from collections.abc import Iterator
from itertools import pairwise

HIDDEN = "***"
"""The replacement for hidden text."""

MAX_ERROR_CHARACTERS = 2000
"""The length of the text of an error that is shown. A server or a sender can make it longer."""

MAX_READ_CHARACTERS = 10 * MAX_ERROR_CHARACTERS
"""The length of the text that is searched for credentials."""

_ADDRESS = "://"
_NEXT_ADDRESS = re.compile(r"[\s,;'\"](?:rediss?|valkeys?|unix|sentinels?|amqps?|https?)://")
_QUERY = re.compile(r"\?\S+")
_CLIENT = re.compile(r"<[\w.]+\(")
_USER = re.compile(r"\bUser ")
_COMMAND = "args beginning with: "


def without_secrets(text: object) -> str:
    """Return the beginning of `text` with ``***`` instead of user names, passwords and clients."""
    whole = str(text)
    read = whole[:MAX_READ_CHARACTERS]
    is_cut = len(read) < len(whole)
    shown = _hide(read, sorted(_secrets(read, is_cut=is_cut)))
    if len(shown) > MAX_ERROR_CHARACTERS:
        return f"{shown[:MAX_ERROR_CHARACTERS]}…"
    return f"{shown}…" if is_cut else shown


def _secrets(text: str, *, is_cut: bool) -> Iterator[tuple[int, int]]:
    """Return the start and the end of each part of `text` that can be secret.

    A part is as long as possible, because a password can have any character. If the text is cut,
    the end of a part can be missing. Then everything after its start can be secret.

    One error must not stop the process, so the time grows only with the length of the text. A
    regular expression for a whole part would search for its end from each start again.
    """
    # The user name and password in an address. A separator and a known scheme begin the next
    # address. With any scheme, a password that contains ",a://" would look like two addresses.
    starts = [0, *(found.start() for found in _NEXT_ADDRESS.finditer(text)), len(text)]
    for start, stop in pairwise(starts):
        address = text.find(_ADDRESS, start, stop)
        end = stop if is_cut and stop == len(text) else text.rfind("@", start, stop)
        if address >= 0:
            yield address + len(_ADDRESS), end
            for query in _QUERY.finditer(text, address, stop):
                yield query.start() + len("?"), query.end()

    # A redis-py client, whose repr can have a password.
    if client := _CLIENT.search(text):
        yield client.start(), len(text) if is_cut else text.rfind(")>") + len(")>")

    # An unknown command, such as HELLO or AUTH.
    if (command := text.find(_COMMAND)) >= 0:
        yield command + len(_COMMAND), len(text)

    if user := _USER.search(text):
        yield user.end(), len(text) if is_cut else text.rfind(" has no permissions")


def _hide(text: str, secrets: list[tuple[int, int]]) -> str:
    shown = []
    at = 0
    for start, end in secrets:
        if end <= max(start, at):
            continue
        if start >= at:
            shown += [text[at:start], HIDDEN]
        at = end
    return "".join([*shown, text[at:]])
