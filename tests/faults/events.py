"""What happens, as lines of JSON: a file for each process, which only it writes.

Each line is one event: when (`t`, of the clock by which holders judge their leases, one for all
processes of a machine), who, what, of which lock, and more. It is written at once and in one
piece, so a process that is killed leaves all that it has seen.

Of a client
    - ``want``, with `weight` and `capacity`; ``queued``: it is surely in the queue; ``refused``
    - ``held``, with `token`, `fence`, `weight`, `capacity`, and `asked`, when it called `acquire`
    - ``kept``, with `token`, `deadline`, when its lease ends, and `sent`, when that was requested
    - ``checked``, with `token`: it looked, and at `t` still held it
    - ``lost``, with `token`: it was told, or looked
    - ``release``, with `token`: the release begins; ``released``: it is done
    - ``error``, with `during`, `type`, `text`, and the `token` of what it could not release

Of a register
    - ``write``, with `fence` and `place`, its number; a register other than `Attempts` has a name,
      `register`, and notes whether the write was `fenced` and `accepted`

Of the harness
    - ``killed``, with `client` and `dead`, when it surely was dead; ``stopped``, ``resumed``;
      ``ended``, with the same: it did not end by itself
    - ``fault``, with `kind`, for all others
    - ``taken``: the lock was taken from its holder, by force or because the server lost it; with
      `fence` from just that one, with `since` at some time since then
    - ``away``, ``back``: nobody could reach the server in between
    - ``behind``, with `locks`, `since`, `seconds` and `clients`: what was requested from `since`
      until `t` (by these clients; none: by any) was on no replica until so many seconds later
    - ``free``: from here on a waiter is to get the lock
    - ``stands``, with `tokens`: who holds it, as the server says, when all clients are gone
    - ``phantom``, ``double``, ``left``: what was found at the end

``taken``, ``away`` and ``back`` are of all locks if they name none.
"""

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from django_redislock.clock import now

Event = dict[str, Any]

WAITER: ContextVar[str] = ContextVar("waiter", default="")
"""The name of the thread or task if a process has several waiters: the client's name, # and a
number. Its events have this name."""


def process_of(who: str) -> str:
    return who.partition("#")[0]


class Log:
    """The file of one process."""

    def __init__(self, folder: Path, who: str) -> None:
        self.folder = folder
        self.who = who
        self._file = os.open(folder / f"{who}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(self, what: str, *, t: float | None = None, **facts: Any) -> Event:
        about = {"t": now() if t is None else t, "who": WAITER.get() or self.who, "what": what}
        event = about | facts
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
        """All so far."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines, end, _ = file.read().rpartition(b"\n")
        self._read += len(lines) + len(end)
        self.seen += [json.loads(line) for line in lines.splitlines()]
        return self.seen


def read(folder: Path) -> list[Event]:
    """All events of all processes, in the order in which they happened."""
    events = [
        {"place": place} | json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        # A last line that was not written to its end does not count.
        for place, line in enumerate(path.read_bytes().split(b"\n")[:-1])
    ]
    return sorted(events, key=lambda event: event["t"])


SIZE = 256  # bytes of a record: it never crosses a page of memory, so no kill can tear it


class Attempts:
    """The register that a lock protects: a file that holds one record for each attempt to write,
    in the order in which they came.

    Appending is atomic, so no lock is needed, and a stopped process holds up no other. A register
    without a fence takes every attempt; one with a fence takes an attempt unless a greater fencing
    token stands before it. So one file is both, and shows what the fence prevented.
    """

    def __init__(self, folder: Path, lock: str) -> None:
        self.lock = lock
        path = folder / f"register {lock.replace('/', '_')}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        self._read = 0
        self._greatest = 0

    def write(self, who: str, fence: int) -> bool:
        """Whether the fence lets it through."""
        event = {"t": now(), "who": who, "what": "write", "lock": self.lock, "fence": fence}
        record = json.dumps(event).encode().ljust(SIZE - 1) + b"\n"
        assert len(record) == SIZE, record
        os.write(self._file, record)
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        accepted = fence >= self._greatest_before(end - SIZE)
        self._greatest = max(self._greatest, fence)
        self._read = end
        return accepted

    def greatest(self) -> int:
        """The greatest fencing token that came so far."""
        return self._greatest_before(os.fstat(self._file).st_size)

    def _greatest_before(self, place: int) -> int:
        while self._read < place:
            record = os.pread(self._file, SIZE, self._read)
            self._greatest = max(self._greatest, json.loads(record)["fence"])
            self._read += SIZE
        return self._greatest

    def close(self) -> None:
        os.close(self._file)
