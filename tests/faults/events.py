"""Events as lines of JSON. Each process writes its own file.

Each line is one event with `t` (the time on the clock that leases use), `at` (the time on
CLOCK_MONOTONIC, which the judge uses), `who`, `what`, usually `lock`, and more fields. Both clocks
are the same for all processes of a machine. An event that is logged later than it happened has no
`at`. A line is written at once, with one system call, so a killed process leaves all its events.

Events of a client
    - ``want``: `acquire` begins
    - ``queued``: the client is certainly queued; ``refused``: it did not acquire the lock
    - ``held``, with `token`, `fence` and `asked`, the time of the `acquire`
    - ``kept``, with `token`, `deadline` (the new end of the lease) and `sent` (the time of the
      request): the lease was set or renewed
    - ``checked``, with `token`: the client checked the lock, and held it at `t`
    - ``lost``, with `token`: the client learned of the loss
    - ``release``, with `token`: the release begins; ``released``: it has ended
    - ``enter``, with `fence`: its critical section begins
    - ``leave``, with `how`: the section ends, because its code releases the lock (``released``),
      or because it looked and saw that the lock is lost (``looked``)
    - ``error``, with `during`, `type`, `text`, and `token` if a release failed

Events of a register
    - ``write``, with `fence` and `place`, its number

Events of the harness
    - ``killed``, with `client` and `dead`, the time at which it was certainly dead; ``stopped``;
      ``resumed``; ``ended``, with the same fields: the client had to be killed at the end
    - ``fault``, with `kind`: any other fault
    - ``away``, ``back``: the server was unreachable in between
    - ``free``: from now on a waiter can acquire the lock
    - ``stands``, with `tokens`: the holders on the server after all clients have ended
    - ``left``: keys or connections that were found at the end

``away`` and ``back`` apply to all locks if they name none.
"""

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from django_redislock.clock import now

Event = dict[str, Any]

at = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""Return the time by the clock of the judge."""


class Log:
    """The event file of one process."""

    def __init__(self, folder: Path, who: str) -> None:
        self.folder = folder
        self.who = who
        self._file = os.open(folder / f"{who}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(self, what: str, *, t: float | None = None, **facts: Any) -> Event:
        about: Event = {"t": now() if t is None else t, "who": self.who}
        if t is None:
            about["at"] = at()
        event = about | {"what": what} | facts
        os.write(self._file, json.dumps(event).encode() + b"\n")
        return event

    def close(self) -> None:
        os.close(self._file)


class Follower:
    """Reads the file of a process that is still writing."""

    def __init__(self, folder: Path, who: str) -> None:
        self._path = folder / f"{who}.jsonl"
        self._path.touch()
        self._read = 0
        self.seen: list[Event] = []

    def events(self) -> list[Event]:
        """Return all events so far."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines, end, _ = file.read().rpartition(b"\n")
        self._read += len(lines) + len(end)
        self.seen += [json.loads(line) for line in lines.splitlines()]
        return self.seen


def read(folder: Path) -> list[Event]:
    """Return all events of all processes, in order of time."""
    events = [
        {"place": place} | json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        # Ignore an incomplete last line.
        for place, line in enumerate(path.read_bytes().split(b"\n")[:-1])
    ]
    return sorted(events, key=lambda event: event["t"])


SIZE = 256  # bytes of a record: it never crosses a page of memory, so no kill can tear it


class Attempts:
    """The register that a lock protects: a file with one record for each attempt to write, in
    order.

    Appending is atomic, so a stopped process does not block others. A register without a fence
    accepts every attempt. One with a fence accepts an attempt unless a greater fencing token
    stands before it. One file shows both.
    """

    def __init__(self, folder: Path, lock: str) -> None:
        self.lock = lock
        path = folder / f"register {lock.replace('/', '_')}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        self._read = 0
        self._greatest = 0

    def write(self, who: str, fence: int) -> bool:
        """Write a record, and return whether the fence accepts it."""
        event = {"t": now(), "at": at(), "who": who, "what": "write"}
        event |= {"lock": self.lock, "fence": fence}
        record = json.dumps(event).encode().ljust(SIZE - 1) + b"\n"
        assert len(record) == SIZE, record
        os.write(self._file, record)
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        accepted = fence >= self._greatest_before(end - SIZE)
        self._greatest = max(self._greatest, fence)
        self._read = end
        return accepted

    def _greatest_before(self, place: int) -> int:
        while self._read < place:
            record = os.pread(self._file, SIZE, self._read)
            self._greatest = max(self._greatest, json.loads(record)["fence"])
            self._read += SIZE
        return self._greatest

    def close(self) -> None:
        os.close(self._file)
