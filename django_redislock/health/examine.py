"""Run all health checks in bounded time. A problem is a result, not an exception."""

import time
from collections.abc import Sequence
from operator import itemgetter
from statistics import median
from typing import Any, TypeAlias

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError

from .. import clock
from ..backends import Server
from ..engine.operations import Flow, RawCommands
from ..engine.protocol import FINAL_REPLY_TIMEOUT_SECONDS
from .probe import RenewerFor, exercise, ping, remaining_seconds
from .results import CHECKS, STATUSES, Finding, Health, describe
from .server_info import check_info, unanswered

SAMPLES = 10
"""The number of round trips that are measured."""

MAX_CLOCK_OFFSET_SECONDS = 1.0
"""From this difference on, the times that people read are visibly wrong."""


Sample: TypeAlias = tuple[float, float, Any]
"""A round trip that asked for the time: its seconds, when it was sent, and the reply."""


def examine(server: Server, renewer: RenewerFor, timeout: float) -> Flow[Health]:
    """Return the results of all checks. Each has the worst result of all nodes of a Cluster."""
    deadline = clock.now() + timeout
    nodes = server.node_servers()
    found: list[tuple[Finding, ...]] = []
    for node in nodes:
        found += [(yield from _examine_node(node, renewer, deadline))]
    if len(nodes) == 1:
        return Health(server.alias, found[0])
    addresses = [node.address for node in nodes]
    worst = (_worst(addresses, each) for each in zip(*found, strict=True))
    return Health(server.alias, tuple(worst))


def unreached(server: Server, error: Exception) -> Health:
    """Return the results if that error keeps the client from being created."""
    findings = [_unreachable(server, error)]
    if isinstance(error, ImproperlyConfigured):
        summary = f"No client can be created: {describe(error)}."
        findings.append(Finding("client", "failed", summary, {}))
    return Health(server.alias, _in_order(findings))


def _worst(addresses: Sequence[str | None], findings: Sequence[Finding]) -> Finding:
    worst = max(findings, key=lambda each: STATUSES.index(each.status))
    where = f"Of {len(findings)} servers, {addresses[findings.index(worst)]}"
    if all(each.summary == worst.summary for each in findings):
        where = f"All {len(findings)} servers"
    facts: dict[str, Any] = {"servers": [each.facts for each in findings]}
    if needs := worst.facts.get("needs"):
        facts["needs"] = needs
    return Finding(worst.id, worst.status, f"{where}: {worst.summary}", facts)


def _examine_node(
    server: Server, renewer: RenewerFor, deadline: float
) -> Flow[tuple[Finding, ...]]:
    findings = [_client(server)]
    try:
        samples = yield from _samples(server.routing_key, deadline)
    except Exception as error:  # noqa: BLE001  any of them also ends every attempt to lock
        return _in_order([*findings, _unreachable(server, error)])
    facts = _address(server)
    where = facts["address"] or "the server that the client found"
    findings.append(Finding("connection", "ok", f"Connected to {where}.", facts))
    findings += [_round_trip(samples), _clock(samples)]
    findings.append((yield from _locking(server, renewer, deadline)))
    # No server knows a script with this digest.
    commands = ("EVALSHA", "0" * 40, 0), ("EVAL", "return 1", 0), ("INFO",)
    try:
        limit = remaining_seconds(deadline)
        *attempts, info = yield RawCommands(commands, limit, server.routing_key)
    except RedisError as error:
        summary = f"The server did not reply: {type(error).__name__}."
        findings += [Finding("scripts", "unknown", summary, {}), *check_info(error)]
    else:
        findings.append((yield from _scripts(server, renewer, deadline, *attempts)))
        findings += check_info(info)
    return _in_order(findings)


def _in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    by_id = {each.id: each for each in findings}
    skipped = "Not checked, because the server is unreachable."
    return tuple(by_id.get(id) or Finding(id, "unknown", skipped, {}) for id in CHECKS)


def _client(server: Server) -> Finding:
    facts: dict[str, Any] = {"redis_py": redis.__version__}
    pool = server.pool
    if pool is None:
        return Finding("client", "unknown", "The client has no connection pool.", facts)
    facts |= {"pool": type(pool).__name__, "max_connections": int(pool.max_connections)}
    try:
        # Only a connection has the defaults, which differ between releases. It does not connect.
        connection = pool.connection_class(**pool.connection_kwargs)
    except Exception as error:  # noqa: BLE001  the options of CACHES can be anything
        summary = f"The options of the alias make no connection: {describe(error)}."
        return Finding("client", "failed", summary, facts)
    timeout = facts["socket_timeout"] = connection.socket_timeout
    facts["socket_connect_timeout"] = connection.socket_connect_timeout
    if timeout is None:
        summary = "Without a socket_timeout, a server that hangs makes its clients hang."
        return Finding("client", "warning", summary, facts)
    summary = f"redis-py {redis.__version__} waits {timeout} s for a reply."
    return Finding("client", "ok", summary, facts)


def _address(server: Server) -> dict[str, Any]:
    """Return the address of the server, without credentials."""
    pool = server.pool
    options = pool.connection_kwargs if pool else {}
    secure = issubclass(pool.connection_class, redis.SSLConnection) if pool else None
    return {"address": server.address, "database": options.get("db") or 0, "tls": secure}


def _unreachable(server: Server, error: Exception) -> Finding:
    facts = _address(server) | {"error": type(error).__name__}
    summary = f"The server is unreachable: {describe(error)}."
    return Finding("connection", "failed", summary, facts)


def _samples(key: str, deadline: float) -> Flow[list[Sample]]:
    samples = []
    for _ in range(SAMPLES + 1):
        sent_at, started_at = time.time(), clock.now()
        [reply] = yield RawCommands((("TIME",),), remaining_seconds(deadline), key)
        samples.append((clock.now() - started_at, sent_at, reply))
    return samples[1:]  # without the one that connected


def _round_trip(samples: Sequence[Sample]) -> Finding:
    middle = median(seconds for seconds, _, _ in samples)
    worst = max(seconds for seconds, _, _ in samples)
    facts = {"median_ms": _ms(middle), "worst_ms": _ms(worst), "samples": len(samples)}
    summary = f"The median of {len(samples)} is {_ms(middle)} ms, and the worst {_ms(worst)} ms"
    if worst < FINAL_REPLY_TIMEOUT_SECONDS:
        return Finding("round_trip", "ok", f"{summary}.", facts)
    return Finding("round_trip", "warning", f"{summary}: too slow for short waits.", facts)


def _clock(samples: Sequence[Sample]) -> Finding:
    duration, sent_at, reply = min(samples, key=itemgetter(0))
    if isinstance(reply, Exception):
        return unanswered("clock", "TIME", reply)
    seconds, microseconds = map(int, reply)
    uncertainty = duration / 2
    offset = seconds + microseconds / 1_000_000 - (sent_at + uncertainty)
    facts = {"offset_ms": _ms(offset), "uncertainty_ms": _ms(uncertainty)}
    side = "ahead" if offset > 0 else "behind"
    summary = f"The server's clock is {abs(_ms(offset))} ms {side} (± {_ms(uncertainty)} ms)"
    if abs(offset) < MAX_CLOCK_OFFSET_SECONDS + uncertainty:
        return Finding("clock", "ok", f"{summary}, which does not affect locks.", facts)
    summary += ", which does not affect locks, but the times that people read."
    return Finding("clock", "warning", summary, facts)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _locking(server: Server, renewer: RenewerFor, deadline: float) -> Flow[Finding]:
    try:
        seconds = yield from ping(server, renewer, remaining_seconds(deadline))
    except RedisError as error:
        summary = f"No lock could be acquired and released: {describe(error)}."
        return Finding("locking", "failed", summary, {"error": type(error).__name__})
    summary = f"A lock was acquired and released in {_ms(seconds)} ms."
    return Finding("locking", "ok", summary, {"ping_ms": _ms(seconds)})


def _scripts(
    server: Server, renewer: RenewerFor, deadline: float, by_digest: object, by_source: object
) -> Flow[Finding]:
    refused = {
        command: reply
        for command, reply in (("EVALSHA", by_digest), ("EVAL", by_source))
        if isinstance(reply, ResponseError) and not isinstance(reply, NoScriptError)
    }
    forbidden = [name for name in refused if isinstance(refused[name], NoPermissionError)]
    facts: dict[str, Any] = {"refused": [*refused]}
    if forbidden:
        facts["needs"] = " ".join(f"+{name.lower()}" for name in forbidden)
    if "EVALSHA" in refused:
        summary = f"The server refuses {' and '.join(refused)}: {describe(refused['EVALSHA'])}."
        return Finding("scripts", "failed", summary, facts)
    steps: list[str] = []
    try:
        yield from exercise(server, renewer, remaining_seconds(deadline), steps)
    except RedisError as error:
        if steps == ["acquire"]:
            summary = "The server runs scripts, but not all were tried, for lack of a lock."
            return Finding("scripts", "unknown", summary, {})
        summary = f"Locks fail at the step {steps[-1]!r}: {describe(error)}."
        facts = {"step": steps[-1], "error": type(error).__name__}
        return Finding("scripts", "failed", summary, facts)
    if refused:
        summary = (
            "The scripts run, but without EVAL they fail after the server has forgotten them."
        )
        return Finding("scripts", "warning", summary, facts)
    summary = "The scripts run: acquire, renew, inspect, queue, hand over and release."
    return Finding("scripts", "ok", summary, {})
