"""All contenders in turn, in each round in another order."""

import gc
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

from tests.stolen import MUCH, Stolen, wait_for_calm

T = TypeVar("T")

AWAY = 0.1
"""The share of the processors' time that the machine's host may give to others meanwhile: a
portion from which it took more, and `MUCH` at least, is measured again when the machine is calm.
So those of some tenths of a second are not: there are many of them."""

AGAIN = 40
"""Portions of a run that are measured again at most: after them all are taken as they are."""

repeated: list[str] = []  # whose portions were, so far


def interleaved(
    contenders: Mapping[str, Callable[[], T]], rounds: int, random: Random, *, warm: bool = True
) -> dict[str, list[T]]:
    """What each answered, by round. Before them each is called once in vain, if `warm`."""
    if warm:
        for call in contenders.values():
            call()
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in random.sample(list(contenders), len(contenders)):
            found[name].append(_measured(name, contenders[name]))
    return found


def cycles(lock: Any, count: int = 100) -> float:
    """Seconds for a cycle of acquire and release, of so many."""
    begun = time.perf_counter()
    for _ in range(count):
        lock.acquire()
        lock.release()
    return (time.perf_counter() - begun) / count


def _measured(name: str, portion: Callable[[], T]) -> T:
    while True:
        gc.collect()  # what one leaves is not to be the next one's work
        stolen = Stolen()
        try:
            answer = portion()
        except Exception:
            if not _is_spoilt(stolen):  # a lease may run out where the machine stands still
                raise
        else:
            if not _is_spoilt(stolen):
                return answer
        repeated.append(name)
        wait_for_calm()


def _is_spoilt(stolen: Stolen) -> bool:
    return len(repeated) < AGAIN and stolen.share > AWAY and stolen.seconds >= MUCH
