"""Faults that are planted into the package in client processes."""

from dataclasses import dataclass, replace
from hashlib import sha1

from django_redislock.engine import store
from django_redislock.engine.lease import Lease
from django_redislock.engine.renewer import Renewer
from django_redislock.lua import Script

from .client import Client

FAST_PATH = "if is_fast and "  # begins the fast path of the script that acquires


@dataclass(frozen=True)
class Planted:
    """A text in some scripts, and its replacement."""

    good: str
    bad: str

    general: bool = False
    """Whether to disable the fast path for free locks, which would avoid the fault."""

    def into(self, script: Script) -> Script:
        source = script.source.replace(self.good, self.bad)
        if self.general and source != script.source:
            assert FAST_PATH in source or script.name != "acquire"
            source = source.replace(FAST_PATH, "if false and ")
        return replace(script, source=source, sha=sha1(source.encode()).hexdigest())  # noqa: S324


SCRIPTS = {
    "acquires although the lock is taken": Planted(
        "local is_room = lock.used + request.weight <= capacity", "local is_room = true"
    ),
    "releases without comparing tokens": Planted(
        "local key, queue, _, index, _, history = unpack(KEYS)",
        """
        local key, queue, _, index, _, history = unpack(KEYS)
        for _, each in ipairs(redis.call('HKEYS', key)) do
          token = string.match(each, '^h:(.*)$') or token
        end""",
    ),
    "uses one fencing token for all holders": Planted(
        "math.max(now_us, last_fence(lock.index) + 1)", "7", general=True
    ),
    "uses fencing tokens that shrink": Planted(
        "math.max(now_us, last_fence(lock.index) + 1)",
        "math.floor((9007199254740991 - now_us) / 10)",
        general=True,
    ),
    "hands over to nobody": Planted("hand_over(lock)\nreturn 1", "return 1"),
    "admits the last waiter first": Planted(
        "'ZRANGE', lock.queue, 0, 0,", "'ZREVRANGE', lock.queue, 0, 0,"
    ),
    "leaves a key behind": Planted(
        "record_end(history, name, kind or '', token, record, how, now_ms)",
        "redis.call('SET', KEYS[5] .. name, 'forgotten')",
    ),
    "reports a valid release as not owned": Planted(
        "hand_over(lock)\nreturn 1", "hand_over(lock)\nreturn 0"
    ),
}

NEVER_RENEWS = "neither renews nor detects the loss"


def plant(client: Client, fault: str) -> int:
    """Plant the fault, and return the number of places that were changed."""
    if fault == NEVER_RENEWS:
        Renewer._due_leases = lambda renewer, watched: []  # type: ignore[method-assign]
        Lease.lost = False  # type: ignore[assignment,method-assign]
        return 1
    places = 0
    for name in ("ACQUIRE", "RELEASE", "RENEW", "HEARTBEAT"):
        script = getattr(store, name)
        planted = SCRIPTS[fault].into(script)
        places += planted.source != script.source
        setattr(store, name, planted)
    return places
