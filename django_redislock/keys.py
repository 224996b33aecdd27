"""The names of the keys in Redis. Only this module knows them.

A key is ``<prefix>:{<bucket>}:<part>[:...]``. The name of a lock determines one of 16 buckets, and
the bucket is the hash tag. So all keys of a lock, and the index of its bucket, are in one slot of
a Cluster. `lua/_lock.lua` describes what each part stores. If a lock is free, only the index and
the history remain.
"""

from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

BUCKETS = 16


@dataclass(frozen=True, slots=True)
class LockKeys:
    """The keys of one lock."""

    name: str
    bucket: int
    lock: str
    queue: str
    waiting: str
    index: str
    inboxes: str
    history: str
    all: tuple[str, ...]
    """All of these keys, in the order that the scripts expect."""

    inbox_group: tuple[str, ...]
    """The prefixes of the inboxes that can be read together: of one bucket, or of all buckets if
    they are on one server."""

    @property
    def locks(self) -> str:
        """The prefix of the lock keys in its bucket."""
        return self.lock.removesuffix(self.name)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix."""

    prefix: str

    has_nodes: bool = False
    """Whether the buckets can be on several servers. Then each script uses only one bucket."""

    @lru_cache(maxsize=256)  # noqa: B019  objects with the same prefix are equal
    def of(self, name: str) -> LockKeys:
        """Return the keys of a lock."""
        bucket = crc32(name.encode()) % BUCKETS
        base, group = self._base(bucket), self._inbox_group(bucket if self.has_nodes else None)
        keys = (
            f"{base}lock:{name}",
            f"{base}queue:{name}",
            f"{base}waiting:{name}",
            f"{base}index",
            f"{base}inbox:",
            f"{base}history:",
        )
        return LockKeys(name, bucket, *keys, keys, group)

    @lru_cache(maxsize=256)  # noqa: B019  as above
    def of_bucket(self, bucket: int) -> tuple[str, str, str]:
        """Return the index of a bucket, and the prefixes of its lock and history keys."""
        base = self._base(bucket)
        return f"{base}index", f"{base}lock:", f"{base}history:"

    @lru_cache(maxsize=256)  # noqa: B019  as above
    def _inbox_group(self, bucket: int | None) -> tuple[str, ...]:
        buckets = range(BUCKETS) if bucket is None else (bucket,)
        return tuple(f"{self._base(each)}inbox:" for each in buckets)

    def _base(self, bucket: int) -> str:
        before, braces, after = self.prefix.partition("{}")
        prefix = self.prefix
        if braces and "{" not in before:
            # If the first braces of a key are empty, a Cluster hashes the entire key.
            prefix = f"{before}{{{bucket}}}{after}"
        return f"{prefix}:{{{bucket}}}:"
