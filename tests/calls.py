"""Count the calls of our own functions."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import django_redislock

PACKAGE = Path(django_redislock.__file__).parent

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Before Python 3.12 each is a function of its own."""


@contextmanager
def counted_calls() -> Iterator[Counter[tuple[str, str]]]:
    """Count how often this thread enters each function: by its file and its name."""
    calls: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        path, code = Path(frame.f_code.co_filename), frame.f_code
        is_ours = path.is_relative_to(PACKAGE) and code.co_name not in COMPREHENSIONS
        if event == "call" and is_ours:
            calls[str(path.relative_to(PACKAGE)), code.co_qualname] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
