"""What a virtual machine's host gave to others when the machine wanted to run, or had it wait for
its disk: `Stolen`."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

STAT = Path("/proc/stat")

PRESSURE = Path("/proc/pressure/io")
"""How long somebody waited for the disk: for what is to be read of a program, too, where the host
takes back the memory that it was in."""

MUCH = 0.2
"""Seconds that are stolen during what may fail by that alone."""

CALM = 0.2
"""The share of the processors' time that others may take on a machine that is calm."""

CALM_WITHIN = 20
"""Seconds to wait for that."""


class Stolen:
    """The processors' time that was stolen since this was made. None where no such thing is
    known: on a machine of its own, and beside Linux."""

    def __init__(self) -> None:
        self._before = _jiffies()
        self._waited_before = _waited()

    @property
    def seconds(self) -> float:
        """Of all processors together, and of the disk."""
        taken = (_jiffies()[0] - self._before[0]) / os.sysconf("SC_CLK_TCK")
        return taken + _waited() - self._waited_before

    @property
    def share(self) -> float:
        """Of the time of all processors; from 0 to 1."""
        stolen, every = (now - then for now, then in zip(_jiffies(), self._before, strict=True))
        return stolen / every if every else 0.0


def wait_for_calm(interval: float = 0.5) -> None:
    """Return when the machine is calm; one that does not become so is taken as it is."""
    deadline = time.monotonic() + CALM_WITHIN
    while time.monotonic() < deadline:
        stolen = Stolen()
        time.sleep(interval)
        if stolen.share < CALM:
            return


def _jiffies() -> tuple[int, int]:
    """What was stolen so far, and all."""
    with suppress(OSError, ValueError, IndexError):
        told = [int(each) for each in STAT.read_text().splitlines()[0].split()[1:9]]
        return told[7], sum(told)
    return 0, 0


def _waited() -> float:
    """Seconds for which somebody waited for the disk so far."""
    with suppress(OSError, ValueError, IndexError):
        [some] = re.findall(r"^some .* total=(\d+)$", PRESSURE.read_text(), re.MULTILINE)
        return int(some) / 1e6
    return 0.0
