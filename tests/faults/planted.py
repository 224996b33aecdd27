"""Faults that are planted into the package in client processes."""

from dataclasses import dataclass, replace
from hashlib import sha1
from typing import Any

from django_redislock.clock import now
from django_redislock.engine import store
from django_redislock.engine.lease import Lease
from django_redislock.engine.operations import Flow
from django_redislock.engine.renewer import Renewer
from django_redislock.lock_types import base, composite, lease_flows
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
    "releases without comparing tokens": Planted(
        "local key, queue, _, index, _, history = unpack(KEYS)",
        """
        local key, queue, _, index, _, history = unpack(KEYS)
        for _, each in ipairs(redis.call('HKEYS', key)) do
          token = string.match(each, '^h:(.*)$') or token
        end""",
    ),
    "admits the last waiter first": Planted(
        "'ZRANGE', lock.queue, 0, 0,", "'ZREVRANGE', lock.queue, 0, 0,"
    ),
    "uses one fencing token for all holders": Planted(
        "math.max(now_us, last_fence(lock.index) + 1)", "7", general=True
    ),
    "leaves a key behind": Planted(
        "record_end(history, name, kind or '', token, record, how, now_ms)",
        "redis.call('SET', KEYS[5] .. name, 'forgotten')",
    ),
    "reports a valid release as not owned": Planted(
        "hand_over(lock)\nreturn 1", "hand_over(lock)\nreturn 0"
    ),
    "acquires although the lock is taken": Planted(
        "local is_room = lock.used + request.weight <= capacity", "local is_room = true"
    ),
    "grants to all waiters": Planted(
        "while lock.capacity == 0 or lock.used < lock.capacity do",
        "while true do\n    lock.used = 0",
    ),
    "grants without removing the waiter": Planted(
        "if not message then leave_queue(lock, token) end", "if not message then break end"
    ),
    "hands over to nobody": Planted("hand_over(lock)\nreturn 1", "return 1"),
    "uses fencing tokens that shrink": Planted(
        "math.max(now_us, last_fence(lock.index) + 1)",
        "math.floor((9007199254740991 - now_us) / 10)",
        general=True,
    ),
    "drops leases after half a second": Planted(
        "local full_lease = now + lease", "local full_lease = now + 500", general=True
    ),
}


def never_renew() -> None:
    Renewer._due_leases = lambda renewer, watched: []  # type: ignore[method-assign]
    Lease.lost = False  # type: ignore[assignment,method-assign]


def count_from_the_reply() -> None:
    begin, extend = Lease.begin, lease_flows.extend_lease
    apply_renewal = Lease.apply_renewal

    def begin_late(lease: Lease, fence_token: int, deadline: float, **options: Any) -> None:
        begin(lease, fence_token, now() + lease.seconds, **options)

    def extend_late(lease: Lease, seconds: float, *, replace: bool) -> Flow[bool]:
        sent_at = now()
        is_held = yield from extend(lease, seconds, replace=replace)
        if is_held:
            lease.set_deadline(lease.deadline + now() - sent_at)
        return is_held

    def apply_renewal_late(lease: Lease, sent_at: float, ttl: float) -> None:
        apply_renewal(lease, now(), ttl)

    Lease.begin = begin_late  # type: ignore[method-assign]
    base.extend_lease = composite.extend_lease = extend_late
    Lease.apply_renewal = apply_renewal_late  # type: ignore[method-assign]


def believe_for_longer() -> None:
    set_deadline = Lease.set_deadline

    def set_later(lease: Lease, deadline: float) -> None:
        set_deadline(lease, deadline + 60)

    Lease.set_deadline = set_later  # type: ignore[method-assign]


FLOWS = {
    "believes in its lease for a minute longer": believe_for_longer,
    "counts leases from the reply": count_from_the_reply,
    "neither renews nor detects the loss": never_renew,
}


def plant(client: Client, fault: str) -> int:
    """Plant the fault, and return the number of places that were changed."""
    if fault in FLOWS:
        FLOWS[fault]()
        return 1
    places = 0
    for name in ("ACQUIRE", "RELEASE", "RENEW", "HEARTBEAT"):
        script = getattr(store, name)
        planted = SCRIPTS[fault].into(script)
        places += planted.source != script.source
        setattr(store, name, planted)
    return places
