"""What a lock protects: registers that clients write, with the fence and without.

`Attempts` is a file that holds one record for each attempt to write, in the order in which they
came. Appending is atomic, so no lock is needed, and a process that is stopped holds up no other.
A register without a fence takes every attempt; one with a fence takes an attempt unless a
greater fencing token stands before it. So one file is both, and tells what the fence saved.

`Row` is a row of a database, written through `django_redislock.fencing`.
"""

import json
import os
from pathlib import Path
from typing import Any

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


class Row:
    """A row of PostgreSQL (or any database of `tests.fencing`) that counts its writes: the first
    is that of the fence, the second has none."""

    def __init__(self, using: str, lock: str) -> None:
        from tests.fencing.models import Account

        self.lock = lock
        self.rows = Account.objects.using(using).filter(note=lock)
        self.plain = Account.objects.using(using).filter(note=f"{lock} without a fence")

    def make(self) -> None:
        self.rows.create(note=self.lock)
        self.plain.create(note=f"{self.lock} without a fence")

    def write(self, holder: Any) -> int:
        """The how manieth write that got through this was; 0 if a newer holder wrote before.
        `holder` is the lock, or the fencing token that the caller took for good."""
        from django.db import transaction
        from django.db.models import F

        from django_redislock import StaleLock
        from django_redislock.fencing import fenced

        try:
            with transaction.atomic(using=self.rows.db):
                fenced(self.rows, holder).update(balance=F("balance") + 1)
                return self.rows.get().balance
        except StaleLock:
            return 0

    def write_without(self) -> int:
        from django.db import transaction
        from django.db.models import F

        with transaction.atomic(using=self.plain.db):
            self.plain.update(balance=F("balance") + 1)
            return self.plain.get().balance
