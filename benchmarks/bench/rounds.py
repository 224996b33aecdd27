"""Measure all contenders in turn, in a random order in each round."""

import gc
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

from tests.stolen import MIN_STOLEN_SECONDS, Stolen, wait_for_calm

T = TypeVar("T")

MAX_STOLEN_SHARE = 0.1
"""Limit for the share of processor time that the machine's host gives to others. A portion that
lost more, and at least `MIN_STOLEN_SECONDS`, is measured again when the machine is calm. So
short portions are not repeated, because there are many of them."""

MAX_REPEATED = 40
"""Limit for the portions of a run that are measured again. Later portions are not repeated."""

repeated: list[str] = []  # contenders of the portions that were repeated


def interleaved(
    contenders: Mapping[str, Callable[[], T]], rounds: int, random: Random, *, warm: bool = True
) -> dict[str, list[T]]:
    """Return the results of each contender, by round. With `warm`, call each once before."""
    if warm:
        for call in contenders.values():
            call()
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in random.sample(list(contenders), len(contenders)):
            found[name].append(_measured(name, contenders[name]))
    return found


def cycles(lock: Any, count: int = 100) -> float:
    """Return the mean seconds of `count` cycles of acquire and release."""
    begun = time.perf_counter()
    for _ in range(count):
        lock.acquire()
        lock.release()
    return (time.perf_counter() - begun) / count


def _measured(name: str, portion: Callable[[], T]) -> T:
    while True:
        gc.collect()  # so that the next contender does not pay for it
        stolen = Stolen()
        try:
            answer = portion()
        except Exception:
            if not _is_disturbed(stolen):  # a lease may expire while the machine is paused
                raise
        else:
            if not _is_disturbed(stolen):
                return answer
        repeated.append(name)
        wait_for_calm()


def _is_disturbed(stolen: Stolen) -> bool:
    return (
        len(repeated) < MAX_REPEATED
        and stolen.share > MAX_STOLEN_SHARE
        and stolen.seconds >= MIN_STOLEN_SECONDS
    )
