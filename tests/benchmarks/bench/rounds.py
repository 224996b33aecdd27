"""All contenders in turn, in each round in another order."""

import gc
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

T = TypeVar("T")


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
            gc.collect()  # what one leaves is not to be the next one's work
            found[name].append(contenders[name]())
    return found
