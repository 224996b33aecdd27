"""Another tenant of the server, which writes to the keys of locks."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from django_redislock import locks
from django_redislock.keys import LockKeys

Raw = str | bytes

LEASE = 60_000
"""Milliseconds until forged leases expire."""

INFO: dict[str, Any] = {
    "host": "web1",
    "pid": 42,
    "thread": "MainThread",
    "task_name": "shop.pay",
    "task_id": "id-1",
    "metadata": {"why": "close"},
    "renewed": True,
    "on_conflict": "",
}
"""The info in the record of a holder."""

HOLDER = ("weight", "expires", "fence", "acquired", "waited", "lease")
"""The fields in the record of a holder, before its info."""

WAITER = ("inbox", "ticket", "capacity", "weight", "grant_ttl", "lease", "kind")
"""The fields in the record of a waiter, before its info."""

STREAMS = ("ended", "broken", "refused")


class Tenant:
    """Writes valid records, except for the parts that are passed."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    @property
    def now(self) -> int:
        seconds, microseconds = self.client.time()
        return seconds * 1000 + microseconds // 1000

    def holder(self, info: Raw | None = None, **bad: Raw) -> bytes:
        """Return the record of a holder."""
        numbers = {
            "weight": 1,
            "expires": self.now + LEASE,
            "fence": self.now * 1000,
            "acquired": self.now - 1000,
            "waited": 0,
            "lease": LEASE,
        }
        return _record(numbers | bad, info)

    def waiter(self, info: Raw | None = None, **bad: Raw) -> bytes:
        """Return the record of a waiter."""
        numbers = {
            "inbox": "aninbox",
            "ticket": 1,
            "capacity": 1,
            "weight": 1,
            "grant_ttl": 2000,
            "lease": LEASE,
            "kind": "mutex",
        }
        return _record(numbers | bad, info)

    def lock(self, name: Raw, *records: Raw, beside: str, **bad: Raw) -> None:
        """Write a lock that is held, next to another lock."""
        keys, end = keys_of(beside), self.now + LEASE
        facts = {"kind": "mutex", "capacity": 1, "used": 1, "soonest": end, "latest": end}
        holders = {f"h:token{number}": record for number, record in enumerate(records)}
        key = keys.lock.removesuffix(beside).encode() + raw(name)
        self.client.hset(key, mapping=facts | bad | holders)
        self.client.zadd(keys.index, {raw(name): end})

    def queue(self, name: str, *records: Raw) -> None:
        """Write waiters of a lock."""
        waiters = {f"waiter{number}": record for number, record in enumerate(records)}
        self.client.hset(keys_of(name).waiting, mapping=waiters)
        self.client.set(f"{keys_of(name).inboxes}aninbox:alive", 1, px=LEASE)
        self.client.zadd(keys_of(name).queue, dict.fromkeys(waiters, self.now * 1000))

    def event(self, name: str, record: Raw, info: Raw | None = None) -> dict[str, Any]:
        """Return an event, with the fields of the end of a hold and of a refusal."""
        return {
            "name": name,
            "kind": "mutex",
            "token": "token",
            "how": "released",
            "at": self.now,
            "holder": record,
            "weight": 1,
            "waited": 0,
            "info": json.dumps(INFO) if info is None else info,
        }


def keys_of(name: str) -> LockKeys:
    return locks._keys.of(name)


def key_of(name: str, part: str) -> str:
    """Return a key of a lock, or of the history."""
    keys = keys_of(name)
    return keys.history + part if part in (*STREAMS, "rates") else getattr(keys, part)


def raw(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _record(parts: Mapping[str, object], info: Raw | None) -> bytes:
    values: Iterable[object] = (*parts.values(), json.dumps(INFO) if info is None else info)
    return b" ".join(map(raw, values))


# Values to write

NUMBERS = ["", "-1", "0", "9" * 17, "9" * 400, "9" * 5000, "1e3", "1e400", "nan", "-inf", "0x10"]
NUMBERS += ["1_0", "1.5", "٣", " 1"]

INFOS = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe\x00",
    b'{"metadata": {"a": NaN}}',
    b'{"metadata": {"a": [-Infinity, 1e999]}}',
    b'{"host": "\\ud800", "task_id": "\\udfff\\u0000", "task_name": "\\ud83d"}',
    b'{"pid": ' + b"9" * 5000 + b"}",
    b'{"pid": true, "host": 5, "metadata": [1], "renewed": 1, "on_conflict": {}}',
    b'{"metadata": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}",
    b'{"metadata": {"a": ' + b"[" * 8_000 + b"]" * 8_000 + b"}}",
    b'{"metadata": {"a": "' + b"x" * 20_000 + b'"}}',
    b'{"host": "' + b"h" * 20_000 + b'"}',
]

NAMES = [b"", b"\n", b".", b"..", b"\x00", b"x" * 600, b"\xff\xfe", b"a\x1b[31m"]
NAMES += ["\u202e".encode()]

texts = st.text(alphabet=st.characters(codec=None), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def fuzzed(examples: int) -> settings:
    """Settings without shrinking, which would take minutes. Examples share a server, are long, and
    take up to half a second each."""
    expected = HealthCheck.function_scoped_fixture, HealthCheck.too_slow
    return settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[*expected, HealthCheck.data_too_large],
    )
