"""How many functions of the package one call enters, and in how many files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import django_redislock
from django_redislock import locks
from django_redislock.signals import LOCK_SIGNALS

PACKAGE = Path(django_redislock.__file__).parent

MAX_FUNCTIONS = 30
MAX_FILES = 9


@contextmanager
def entered() -> Iterator[set[tuple[str, str]]]:
    """Collect the file and name of each function of the package that this thread enters."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found.add((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_an_uncontended_acquisition_enters_few_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for signal in LOCK_SIGNALS:  # other tests may have left receivers
        monkeypatch.setattr(signal, "receivers", [])
    with locks.lock("invoice:42"):
        pass
    with entered() as found:
        lock = locks.lock("invoice:42")
        lock.acquire()
    lock.release()

    assert len(found) <= MAX_FUNCTIONS, sorted(found)
    assert len({file for file, _ in found}) <= MAX_FILES, sorted(found)
