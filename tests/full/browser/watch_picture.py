"""Take a picture of the screen of `locks watch` as SVG."""

import re

from tests.commands import draw

DESCRIPTION = (
    "The screen of locks watch: active locks with their holders, leases and waiters, and the "
    "latest events below"
)


def watch_svg() -> str:
    picture = draw(columns=120, rows=20, interval=2, as_svg=True)
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # from the network
    return picture.replace("<svg ", f'<svg role="img" aria-label="{DESCRIPTION}" ', 1)
