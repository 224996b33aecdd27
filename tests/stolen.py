"""How much time the host of a virtual machine took from it: `Stolen`."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

MIN_STOLEN_SECONDS = 0.2
"""Stolen seconds that can make a test fail."""

CALM = 0.2
"""The highest share of stolen time on a calm machine."""


class Stolen:
    """The time that was stolen since this object was made. It is 0 where the kernel does not
    report stolen time."""

    def __init__(self) -> None:
        self._before = _times()

    @property
    def seconds(self) -> float:
        """Stolen seconds of all processors, and seconds in which a process waited for the disk."""
        stolen, _, waited = self._since()
        return stolen / os.sysconf("SC_CLK_TCK") + waited

    @property
    def share(self) -> float:
        """The stolen share of the time of all processors, from 0 to 1."""
        stolen, total, _ = self._since()
        return stolen / total if total else 0.0

    def _since(self) -> list[float]:
        return [now - before for now, before in zip(_times(), self._before, strict=True)]


def _times() -> tuple[int, int, float]:
    """Stolen and all clock ticks, and the seconds in which a process waited for the disk."""
    ticks, waited = [0] * 8, 0.0
    with suppress(OSError, ValueError, IndexError):
        ticks = [int(each) for each in Path("/proc/stat").read_text().split()[1:9]]
    with suppress(OSError, TypeError):
        some = re.match(r"some .* total=(\d+)", Path("/proc/pressure/io").read_text())
        waited = int(some[1]) / 1e6  # type: ignore[index]
    return ticks[7], sum(ticks), waited


def wait_for_calm(timeout: float = 20) -> None:
    """Wait until the machine is calm, but not longer than `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        stolen = Stolen()
        time.sleep(0.5)
        if stolen.share < CALM:
            return
