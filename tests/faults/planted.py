"""Faults planted into the product inside of clients, for the checker to find."""

from dataclasses import dataclass, replace
from hashlib import sha1

from django_redislock.clock import now
from django_redislock.engine import protocol
from django_redislock.engine.lease import Lease
from django_redislock.engine.operations import Flow
from django_redislock.engine.renewer import Book
from django_redislock.lua import Script

from .client import Client

USUAL = "if usual and "  # how the script that acquires turns to a lock that is free


@dataclass(frozen=True)
class Planted:
    """A text of some scripts, and what stands in its place."""

    good: str
    bad: str

    general: bool = False
    """Whether a lock that is free has to be acquired as any other, for the fault to be met."""

    def into(self, script: Script) -> Script:
        source = script.source.replace(self.good, self.bad)
        if self.general and source != script.source:
            assert USUAL in source or script.name != "acquire"
            source = source.replace(USUAL, "if false and ")
        return replace(script, source=source, sha=sha1(source.encode()).hexdigest())  # noqa: S324


SCRIPTS = {
    "releases without comparing tokens": Planted(
        "local grant = grants .. token .. ':' .. name -- still there",
        """
        for _, each in ipairs(redis.call('HKEYS', lock)) do
          token = string.match(each, '^h:(.*)$') or token
        end
        local grant = grants .. token .. ':' .. name -- still there""",
    ),
    "lets in who came last": Planted("'ZRANGE', queue, 0, 0,", "'ZREVRANGE', queue, 0, 0,"),
    "has one fencing token for all": Planted(
        "digits(math.max(now_us, last_fence() + 1))", "'7'", general=True
    ),
    "leaves a key behind": Planted(
        "note_end(kind, token, record, 'released', now_ms)",
        "redis.call('SET', grants .. name, 'forgotten')",
    ),
    "tells nobody of a release": Planted(
        "  admit(state)\n  if state.used == 0 then", "  if state.used == 0 then"
    ),
    "denies that it was held": Planted(
        "shorten(state, state.mine.expires)\nhand_over(state)\nreturn 1",
        "shorten(state, state.mine.expires)\nhand_over(state)\nreturn 0",
    ),
}


def never_renew() -> None:
    Book._to_renew = lambda book: []  # type: ignore[method-assign]
    Lease.lost = False  # type: ignore[assignment,method-assign]


def show_no_life() -> None:
    protocol.ALIVE, protocol.SLICE = 0.05, 8.0


def count_from_the_reply() -> None:
    claim, extend, renewed = protocol._claim, protocol.extend, Lease.renewed

    def claim_late(
        want: protocol.Want, left: float, asked: float
    ) -> Flow[protocol.Granted | None]:
        granted = yield from claim(want, left, asked)
        return granted and granted._replace(deadline=now() + want.lease)

    def extend_late(lease: Lease, seconds: float, *, replace: bool) -> Flow[bool]:
        sent = now()
        is_running = yield from extend(lease, seconds, replace=replace)
        if is_running:
            lease.keep(lease.deadline + now() - sent)
        return is_running

    def renewed_late(lease: Lease, sent: float, left: float) -> None:
        renewed(lease, now(), left)

    protocol._claim, protocol.extend = claim_late, extend_late
    Lease.renewed = renewed_late  # type: ignore[method-assign]


FLOWS = {
    "counts leases from the reply": count_from_the_reply,
    "does not renew, and does not know": never_renew,
    "waits without showing life": show_no_life,
}


def plant(client: Client, fault: str) -> int:
    """In how many places it was planted."""
    if fault in FLOWS:
        FLOWS[fault]()
        return 1
    places = 0
    for name in ("ACQUIRE", "RELEASE", "RENEW"):
        script = getattr(protocol, name)
        planted = SCRIPTS[fault].into(script)
        places += planted.source != script.source
        setattr(protocol, name, planted)
    return places
