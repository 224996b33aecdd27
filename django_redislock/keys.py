"""The names of the keys in Redis. Nothing else knows them.

``<prefix>:{<bucket>}:<part>[:...]``: a lock's name picks one of 16 buckets, and
the bucket is the hash tag, so that all of a lock, with its bucket's index and
fencing counter, lies in one slot of a Cluster. `lua/_lock.lua` says what each
part holds. Of all of them only the index and the history stay when a lock is free.
"""

from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

BUCKETS = 16


@dataclass(frozen=True, slots=True)
class LockKeys:
    name: str
    bucket: int
    lock: str
    queue: str
    waiting: str
    index: str
    grants: str
    history: str

    @property
    def locks(self) -> str:
        """The base of the lock keys of its bucket."""
        return self.lock.removesuffix(self.name)

    @property
    def all(self) -> tuple[str, ...]:
        return self.lock, self.queue, self.waiting, self.index, self.grants, self.history

    def grant(self, token: str) -> str:
        return f"{self.grants}{token}:{self.name}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix."""

    prefix: str

    apart: bool = False
    """Whether the buckets may be on several servers, so that no script sees more than one."""

    def of(self, name: str) -> LockKeys:
        return _of(self.prefix, name)

    def inspect(self, bucket: int) -> tuple[str, str, str, str]:
        """The index, and the bases of the lock and waiting keys and of the history."""
        base = _base(self.prefix, bucket)
        return f"{base}index", f"{base}lock:", f"{base}waiting:", f"{base}history:"

    def history(self, bucket: int) -> tuple[str, str, str]:
        """The index, and the bases of the lock keys and of the history."""
        index, lock, _, history = self.inspect(bucket)
        return index, lock, history


def _base(prefix: str, bucket: int) -> str:
    before, braces, after = prefix.partition("{}")
    if braces and "{" not in before:
        # If the first braces of a key are empty, a Cluster hashes the entire key.
        prefix = f"{before}{{{bucket}}}{after}"
    return f"{prefix}:{{{bucket}}}:"


@lru_cache(maxsize=256)
def _of(prefix: str, name: str) -> LockKeys:
    bucket = crc32(name.encode()) % BUCKETS
    base = _base(prefix, bucket)
    return LockKeys(
        name,
        bucket,
        f"{base}lock:{name}",
        f"{base}queue:{name}",
        f"{base}waiting:{name}",
        f"{base}index",
        f"{base}grant:",
        f"{base}history:",
    )
