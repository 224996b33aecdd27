"""How many functions of the package one call enters, and in how many files."""

import pytest

from django_redislock import locks
from django_redislock.signals import LOCK_SIGNALS
from tests.calls import counted_calls

MAX_FUNCTIONS = 31
MAX_FILES = 9


def test_an_acquisition_enters_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    for signal in LOCK_SIGNALS:  # other tests may have left receivers
        monkeypatch.setattr(signal, "receivers", [])
    found = []
    for _ in range(5):  # some acquisitions take another path
        with counted_calls() as calls:
            lock = locks.lock("invoice:42")
            lock.acquire()
        lock.release()
        found.append(calls)
    calls = min(found, key=len)

    assert 0 < len(calls) <= MAX_FUNCTIONS, sorted(calls)
    assert len({file for file, _ in calls}) <= MAX_FILES, sorted(calls)
