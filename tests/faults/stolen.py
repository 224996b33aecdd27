"""Whether a virtual machine was there: what its host gave to others, when it wanted to run."""

from contextlib import suppress
from pathlib import Path
from typing import Self

STAT = Path("/proc/stat")


class Stolen:
    """The `share` of the processors' time that was stolen in the block. 0 where no such thing is
    known: on a machine of its own, and beside Linux."""

    share = 0.0

    def __enter__(self) -> Self:
        self._stolen, self._all = _jiffies()
        return self

    def __exit__(self, *error: object) -> None:
        stolen, every = _jiffies()
        if every > self._all:
            self.share = (stolen - self._stolen) / (every - self._all)


def _jiffies() -> tuple[int, int]:
    """What was stolen so far, and all."""
    with suppress(OSError, ValueError, IndexError):
        told = [int(each) for each in STAT.read_text().splitlines()[0].split()[1:9]]
        return told[7], sum(told)
    return 0, 0
