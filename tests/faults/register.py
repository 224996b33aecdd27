"""What a lock protects: a register that clients write, with the fence and without.

`Attempts` is a file that holds one record for each attempt to write, in the order in which they
came. Appending is atomic, so no lock is needed, and a process that is stopped holds up no other.
A register without a fence takes every attempt; one with a fence takes an attempt unless a greater
fencing token stands before it. So one file is both, and shows what the fence prevented.
"""

import json
import os
from pathlib import Path

from django_redislock.clock import now

SIZE = 256  # bytes of a record: it never crosses a page of memory, so no kill can tear it


class Attempts:
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
