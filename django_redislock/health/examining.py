"""Asking a server all that is to be found, in bounded time and without an error."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias, TypeVar

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError

from .. import clock
from ..backends import Server
from ..engine.operations import Flow, RawCommands
from ..engine.protocol import FINAL_REPLY_TIMEOUT_SECONDS
from ..lua import ACQUIRE
from . import resources, told
from .client import address, client
from .finding import STATUSES, Finding, Health, words
from .probing import Rehearsal, RenewerOf, ping

SAMPLES = 10
"""Round trips that are measured."""

CLOCKS_APART = 1.0
"""Seconds by which two clocks can differ until people read wrong times."""

T = TypeVar("T")
Judge: TypeAlias = Callable[[told.Told], Finding]

CHECKS = (
    "connection",
    "locking",
    "round_trip",
    "scripts",
    "eviction",
    "memory",
    "persistence",
    "replication",
    "clock",
    "version",
    "client",
)
"""The ids of the findings, in their order."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round trip, in which the server was asked for its time."""

    seconds: float

    offset: float | Exception
    """Seconds by which the server's clock is ahead, give or take half of the round trip; or why it
    would not tell."""


def examine(server: Server, renewer: RenewerOf, timeout: float) -> Flow[Health]:
    """All findings; what could not be asked by then is unknown or failed."""
    until = clock.now() + timeout
    members = server.node_servers()
    found_of: list[tuple[Finding, ...]] = []
    for member in members:
        found_of += [(yield from _findings(member, renewer, until))]
    if len(members) == 1:
        return Health(server.alias, found_of[0])
    addresses = [member.address for member in members]
    together = (_together(addresses, each) for each in zip(*found_of, strict=True))
    return Health(server.alias, tuple(together))


def unreached(server: Server, error: Exception) -> Health:
    """What there is to say where not even a client could be made."""
    findings = [_unreached(server, error)]
    if isinstance(error, ImproperlyConfigured):
        findings.append(Finding("client", "failed", f"No client can be made: {words(error)}.", {}))
    return Health(server.alias, _all_of(findings))


def _all_of(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    found = {each.id: each for each in findings}
    return tuple(found.get(id) or _not_asked(id) for id in CHECKS)


def _together(addresses: Sequence[str | None], findings: Sequence[Finding]) -> Finding:
    """The worst of what was found of several servers, with the facts of each."""
    worst = max(findings, key=lambda each: STATUSES.index(each.status))
    address = addresses[findings.index(worst)]
    if all(each.summary == worst.summary for each in findings):
        summary = f"All {len(findings)} servers: {worst.summary}"
    else:
        summary = f"Of {len(findings)} servers, {address}: {worst.summary}"
    return Finding(worst.id, worst.status, summary, {"servers": [each.facts for each in findings]})


def _findings(server: Server, renewer: RenewerOf, until: float) -> Flow[tuple[Finding, ...]]:
    findings = [client(server)]
    try:
        samples = yield from _samples(server.routing_key, until)
    except Exception as error:  # noqa: BLE001  whatever it is, every lock would meet it
        findings.append(_unreached(server, error))
    else:
        findings += [_connected(server), _round_trip(samples), _judge("clock", _clock, samples)]
        findings += yield from _locking(server, renewer, until)
        findings += _judged((yield from told.ask(_left(until), server.routing_key)))
    return _all_of(findings)


def _left(until: float) -> float:
    return max(until - clock.now(), FINAL_REPLY_TIMEOUT_SECONDS)


def _samples(key: str, until: float) -> Flow[list[Sample]]:
    yield from _sample(key, until)  # connects, and is not counted
    samples: list[Sample] = []
    while len(samples) < SAMPLES:
        samples += [(yield from _sample(key, until))]
    return samples


def _sample(key: str, until: float) -> Flow[Sample]:
    wall, began = time.time(), clock.now()
    [answer] = yield RawCommands((("TIME",),), _left(until), key)
    seconds = clock.now() - began
    if isinstance(answer, Exception):
        return Sample(seconds, answer)
    there = int(answer[0]) + int(answer[1]) / 1_000_000
    return Sample(seconds, there - (wall + seconds / 2))


def _unreached(server: Server, error: Exception) -> Finding:
    facts = address(server) | {"error": type(error).__name__}
    summary = f"The server can't be reached: {words(error)}."
    return Finding("connection", "failed", summary, facts)


def _connected(server: Server) -> Finding:
    facts = address(server)
    where = facts["address"] or "a server that its client looks up"
    return Finding("connection", "ok", f"Connected to {where}.", facts)


def _not_asked(id: str) -> Finding:
    return Finding(id, "unknown", "Not asked, as the server can't be reached.", {})


def _round_trip(samples: list[Sample]) -> Finding:
    middle = median(each.seconds for each in samples)
    worst = max(each.seconds for each in samples)
    facts = {"median_ms": _ms(middle), "worst_ms": _ms(worst), "samples": len(samples)}
    summary = f"{_ms(middle)} ms in the median, {_ms(worst)} ms at worst, of {len(samples)}"
    if worst < FINAL_REPLY_TIMEOUT_SECONDS:
        return Finding("round_trip", "ok", f"{summary}.", facts)
    return Finding("round_trip", "warning", f"{summary}: too slow for short waits.", facts)


def _clock(samples: list[Sample]) -> Finding:
    best = min(samples, key=lambda sample: sample.seconds)
    offset = told.given(best.offset, "TIME", "+time")
    uncertain = best.seconds / 2
    facts = {"offset_ms": _ms(offset), "uncertainty_ms": _ms(uncertain)}
    side = "ahead" if offset > 0 else "behind"
    summary = (
        f"The server's clock is {abs(_ms(offset))} ms {side} (give or take {_ms(uncertain)} ms)"
    )
    if abs(offset) < CLOCKS_APART + uncertain:
        return Finding("clock", "ok", f"{summary}; exclusion does not depend on it.", facts)
    summary += ": exclusion does not depend on it, but the times that people read are off."
    return Finding("clock", "warning", summary, facts)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _locking(server: Server, renewer: RenewerOf, until: float) -> Flow[list[Finding]]:
    try:
        seconds = yield from ping(server, renewer, _left(until))
    except RedisError as error:
        facts = {"error": type(error).__name__}
        summary = f"No lock could be acquired and released: {words(error)}."
        locking = Finding("locking", "failed", summary, facts)
    else:
        summary = f"A lock was acquired and released in {_ms(seconds)} ms."
        locking = Finding("locking", "ok", summary, {"ping_ms": _ms(seconds)})
    return [locking, (yield from _scripts(server, renewer, until, locking.status == "ok"))]


def _scripts(server: Server, renewer: RenewerOf, until: float, works: bool) -> Flow[Finding]:
    try:
        refused = yield from _refused(server.routing_key, until)
        if works and "EVALSHA" not in refused:
            return (yield from _rehearsed(server, renewer, until, refused))
    except RedisError as error:
        return Finding("scripts", "unknown", f"Not answered: {type(error).__name__}.", {})
    if not refused:
        summary = "Not all tried, as no lock could be had; the server takes scripts."
        return Finding("scripts", "unknown", summary, {})
    names = " and ".join(refused)
    facts = _needs(refused)
    return Finding(
        "scripts",
        "failed",
        f"The server refuses {names}: {words(next(iter(refused.values())))}.",
        facts,
    )


def _needs(refused: Mapping[str, Any]) -> dict[str, Any]:
    lacking = [
        f"+{name.lower()}"
        for name, error in refused.items()
        if isinstance(error, NoPermissionError)
    ]
    return {"refused": [*refused]} | ({"needs": " ".join(lacking)} if lacking else {})


def _refused(key: str, until: float) -> Flow[dict[str, Any]]:
    """What runs scripts and is refused, with the server's words."""
    by_digest = ("EVALSHA", "0" * len(ACQUIRE.sha), 0)  # known to no server
    answers = yield RawCommands((by_digest, ("EVAL", "return 1", 0)), _left(until), key)
    return {
        name: answer
        for name, answer in zip(("EVALSHA", "EVAL"), answers, strict=True)
        if isinstance(answer, ResponseError) and not isinstance(answer, NoScriptError)
    }


def _rehearsed(
    server: Server, renewer: RenewerOf, until: float, refused: dict[str, Any]
) -> Flow[Finding]:
    rehearsal = Rehearsal(server, renewer, _left(until))
    try:
        yield from rehearsal.run()
    except RedisError as error:
        facts = {"step": rehearsal.step, "error": type(error).__name__}
        summary = f"Locks fail when they {rehearsal.step}: {words(error)}."
        return Finding("scripts", "failed", summary, facts)
    if refused:
        summary = (
            "The scripts run, but the server refuses EVAL: they can't be sent again after it "
            "forgot them."
        )
        return Finding("scripts", "warning", summary, _needs(refused))
    summary = "The scripts run: acquire, renew, inspect, queue, hand over and release."
    return Finding("scripts", "ok", summary, {})


def _judged(answers: told.Told) -> list[Finding]:
    judges: dict[str, Judge] = {
        "eviction": resources.eviction,
        "memory": resources.memory,
        "persistence": resources.persistence,
        "replication": resources.replication,
        "version": resources.version,
    }
    return [_judge(id, judge, answers) for id, judge in judges.items()]


def _judge(id: str, judge: Callable[[T], Finding], answers: T) -> Finding:
    try:
        return judge(answers)
    except told.NotTold as error:
        facts = {"needs": error.needs} if error.needs else {}
        return Finding(id, "unknown", str(error), facts)
