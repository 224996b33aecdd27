"""The names of the keys in Redis. Only this module knows them.

A key is ``{<prefix>}:<part>[:...]``. The braces make the prefix a hash tag: all keys with one
prefix are in one slot of a Cluster, so they are on one primary, and a script can use several of
them. `lua/_lock.lua` describes what each part stores. If a lock is free, only the index and the
history remain.
"""

from dataclasses import dataclass
from functools import lru_cache

from django.utils.functional import cached_property


@dataclass(frozen=True, slots=True)
class LockKeys:
    """The keys of one lock."""

    name: str
    lock: str
    queue: str
    waiting: str
    index: str
    inboxes: str
    history: str

    all: tuple[str, ...]
    """All of these keys, in the order that the scripts expect."""

    @property
    def locks(self) -> str:
        """The prefix of the hashes of all locks."""
        return self.lock.removesuffix(self.name)


@dataclass(frozen=True)
class Keys:
    """The keys with one prefix.

    Raises:
        ValueError: The prefix is empty or begins with ``}``. A Cluster would spread its keys over
            the slots.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix:
            raise ValueError("REDISLOCK_PREFIX cannot be empty without a KEY_PREFIX")
        if self.prefix.startswith("}"):
            raise ValueError(f"The prefix of keys cannot begin with '}}', got {self.prefix!r}")

    @cached_property
    def index(self) -> str:
        """The sorted set of all held locks."""
        return self._key("index")

    @cached_property
    def all(self) -> tuple[str, str, str]:
        """The keys that a script needs to read all locks: the index, the prefix of the hashes of
        locks, and the prefix of the history."""
        return self.index, self._key("lock:"), self._key("history:")

    def last_runs(self, name: str) -> str:
        """Return the hash of the last runs of a schedule, whose leader holds the lock `name`."""
        return self._key(f"beat:{name}")

    @lru_cache(maxsize=256)  # noqa: B019  objects with the same prefix are equal
    def of(self, name: str) -> LockKeys:
        """Return the keys of a lock."""
        keys = (
            self._key(f"lock:{name}"),
            self._key(f"queue:{name}"),
            self._key(f"waiting:{name}"),
            self.index,
            self._key("inbox:"),
            self._key("history:"),
        )
        return LockKeys(name, *keys, keys)

    def _key(self, part: str) -> str:
        return f"{{{self.prefix}}}:{part}"
