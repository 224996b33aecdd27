"""A wall clock that can be set, for processes that are started with its `environment`."""

import threading
from pathlib import Path

from tests.programs import find


class Clock:
    """A clock that runs on after each change. The monotonic clock is not changed.

    It works with Valkey. Debian's Redis does not respond with it.

    >>> clock = Clock(folder / "clock")
    >>> with Node(environment=clock.environment):
    ...     clock.move(3600)
    """

    def __init__(self, file: Path) -> None:
        self._library = find("libfaketime.so.1")
        self._file = file
        self._ahead = 0.0
        self._moving = threading.Lock()
        self.move(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": self._library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def move(self, seconds: float) -> None:
        """Set it forward, or back."""
        with self._moving:
            self._ahead += seconds
            # Renamed, so that nobody reads the half of it.
            new = self._file.with_suffix(".new")
            new.write_text(f"{self._ahead:+.3f}s")
            new.rename(self._file)
