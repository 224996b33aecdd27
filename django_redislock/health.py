"""Health checks: whether locking works now, and what could make it fail.

No lock depends on this module. It sends commands only when an operator asks for a check. It does
not use CONFIG, because a user who may run CONFIG GET can read ``requirepass`` and ``masterauth``.
"""

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import median
from typing import Any, Literal, TypeAlias

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from . import clock
from .backends import Server
from .engine import protocol, queries, store
from .engine.operations import Batch, Call, Flow, Join, Op, RawCommands, Wait, changed
from .engine.parsing import text
from .engine.protocol import FINAL_REPLY_TIMEOUT_SECONDS
from .exceptions import LockLost
from .identity import info_text
from .redaction import without_secrets

NAME_PREFIX = "django-redislock:probe:"
"""Of the names of test locks, which nothing else uses."""

SPARE_LEASE_SECONDS = 1.0
"""How much longer the lease of a test lock is than the time limit of its check."""

SAMPLES = 10
"""The number of round trips that are measured."""

MAX_CLOCK_OFFSET_SECONDS = 1.0
"""From this difference on, the times that people read are visibly wrong."""

NEARLY_FULL = 0.9
"""The part of maxmemory from which on the check warns."""

Status: TypeAlias = Literal["ok", "unknown", "warning", "failed"]

STATUSES: tuple[Status, ...] = ("ok", "unknown", "warning", "failed")
"""All statuses, from the best to the worst."""

REMEDIES = {
    "connection": "Start the server. Check LOCATION, the password, TLS and the firewall.",
    "locking": "Correct what another check reports, or grant the user the documented rights.",
    "round_trip": "Use a server in the same network. See SLOWLOG and LATENCY DOCTOR.",
    "scripts": "Grant the user the rights that the documentation lists.",
    "eviction": "Set maxmemory-policy noeviction, on a server that is not a cache.",
    "memory": "Increase maxmemory, or store less on this server.",
    "persistence": "Set appendonly yes. After a failed write, check the server's disk.",
    "replication": "Use the primary's address. Set min-replicas-to-write, and repair replicas.",
    "clock": "Run NTP on both machines.",
    "client": "Correct LOCATION and OPTIONS. Set socket_timeout, for example to 5 seconds.",
}

CHECKS = tuple(REMEDIES)
"""The ids of the checks, in the order of their results."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one part of the health check."""

    id: str
    """The id of this part. The documentation lists all ids."""

    status: Status
    """``"ok"``, ``"unknown"`` (the server did not say), ``"warning"`` (locks can be lost) or
    ``"failed"`` (locking does not work, or is not safe)."""

    summary: str
    """One sentence about the result. It can quote the server."""

    facts: Mapping[str, Any]
    """The values behind the result, which can be serialized as JSON."""

    @property
    def remedy(self) -> str:
        """The action to take after a warning or a failure. An empty string otherwise."""
        if needs := self.facts.get("needs"):
            return f"Grant the user {needs}."
        return REMEDIES[self.id] if self.status in ("warning", "failed") else ""


@dataclass(frozen=True, slots=True)
class Health:
    """The results of a health check of one cache alias."""

    alias: str
    """The cache alias."""

    findings: tuple[Finding, ...]
    """The results, always with the same ids and in the same order."""

    @property
    def status(self) -> Status:
        """The status of the worst result."""
        return max((each.status for each in self.findings), key=STATUSES.index)

    def get(self, id: str) -> Finding:
        """Return the result with this id. Raises `KeyError` for an unknown id."""
        return {each.id: each for each in self.findings}[id]


# Test locks


def ping(server: Server, limit: float) -> Flow[float]:
    """Acquire and release a test lock, and return how many seconds that took.

    A test lock has no event in the history, which frequent pings would fill.
    """
    started_at = clock.now()
    request = _request(server, limit)

    def steps() -> Flow[None]:
        yield from protocol.acquire(request, -math.inf)
        yield from _release(request)

    yield from _without_trace(steps(), [request], started_at + limit)
    return clock.now() - started_at


def _exercise(server: Server, deadline: float, log: list[str]) -> Flow[None]:
    """Run each operation of a lock once, including a waiter and a handover.

    Args:
        server: The server.
        deadline: The time until which a reply is awaited.
        log: Gets the name of each step before the step begins.
    """
    holder = _request(server, _remaining_seconds(deadline))
    waiter = replace(holder, token=uuid.uuid4().hex, may_arrive_late=True)
    keys = holder.keys

    def steps() -> Flow[None]:
        log.append("acquire")
        yield from protocol.acquire(holder, -math.inf)
        log.append("renew")
        yield from protocol.renew(keys, holder.token, 0, "renew")
        log.append("queue")
        place = yield Join(keys, waiter.token)
        try:
            yield store.acquire(waiter, place.address, None)
            place.is_waiting = True
            yield from place.inbox.heartbeat()
            log.append("inspect")
            yield from queries.get(server.keys, keys.name)
            log.append("hand over")
            yield from _release(holder)
            log.append("wait")
            yield Wait(place, _remaining_seconds(deadline))
        finally:
            place.inbox.waiters.pop(place.ticket, None)
        yield from protocol.acquire(waiter, -math.inf)  # confirms the grant
        log.append("release")
        yield from _release(waiter)

    # The waiter is removed first. Otherwise it would be granted the lock.
    return _without_trace(steps(), [waiter, holder], deadline)


def _remaining_seconds(deadline: float) -> float:
    """Return how long to wait for a reply. The last reply gets a minimum."""
    return max(deadline - clock.now(), FINAL_REPLY_TIMEOUT_SECONDS)


def _request(server: Server, limit: float) -> store.AcquireRequest:
    names = iter(lambda: NAME_PREFIX + uuid.uuid4().hex, None)
    return store.AcquireRequest(
        keys=server.keys.of(next(filter(server.stores, names))),
        token=uuid.uuid4().hex,
        kind="mutex",
        capacity=1,
        weight=1,
        lease=limit + SPARE_LEASE_SECONDS,
        info=info_text({}, renewed=False),
        is_renewed=False,
    )


def _release(request: store.AcquireRequest) -> Flow[None]:
    if not (yield from protocol.release(request.keys, request.token)):
        message = "The test lock disappeared before it was released: the server deleted it"
        raise LockLost(message, lock_name=request.keys.name)


def _without_trace(
    steps: Flow[None], requests: Sequence[store.AcquireRequest], deadline: float
) -> Flow[None]:
    """Run the steps in bounded time and without history. If one fails, release the locks. If the
    server does not respond, their leases expire."""

    def limited(op: Op) -> Op:
        if isinstance(op, Call):
            # The last argument of a script is the number of events to keep in the history. All
            # grants are pushed, so that the wait reads one.
            op = replace(op, args=(*op.args[:-1], 0), inbox_of=None)
        if isinstance(op, Batch | Call):
            op = replace(op, limit=_remaining_seconds(deadline))
        return op

    try:
        yield from changed(steps, limited)
    except GeneratorExit:
        raise
    except BaseException as error:  # also an interrupt
        for request in requests:
            yield from changed(protocol.cleanup_failed_acquire(request, error), limited)
        raise


# All checks


def examine(server: Server, timeout: float) -> Flow[Health]:
    """Run all checks in bounded time. A problem is a result, not an exception.

    Of several servers, such as the nodes of a Cluster, each result is the worst one.
    """
    deadline = clock.now() + timeout
    nodes = server.node_servers()
    found: list[tuple[Finding, ...]] = []
    for node in nodes:
        found += [(yield from _examine_node(node, deadline))]
    if len(nodes) == 1:
        return Health(server.alias, found[0])
    addresses = [node.address for node in nodes]
    worst = (_worst(addresses, each) for each in zip(*found, strict=True))
    return Health(server.alias, tuple(worst))


def unreached(server: Server, error: Exception) -> Health:
    """Return the results if that error keeps the client from being created."""
    findings = [_unreachable(server, error)]
    if isinstance(error, ImproperlyConfigured):
        summary = f"No client can be created: {_describe(error)}."
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


def _examine_node(server: Server, deadline: float) -> Flow[tuple[Finding, ...]]:
    findings = [_client(server)]
    try:
        samples = yield from _samples(server.routing_key, deadline)
    except Exception as error:  # noqa: BLE001  any of them also ends every attempt to lock
        return _in_order([*findings, _unreachable(server, error)])
    where = server.address or "the server that the client found"
    facts = {"address": server.address}
    findings.append(Finding("connection", "ok", f"Connected to {where}.", facts))
    findings += [_round_trip(samples), _clock(samples)]
    findings.append((yield from _locking(server, deadline)))
    commands = ("EVAL", "return 1", 0), ("INFO",)
    try:
        limit = _remaining_seconds(deadline)
        replies = yield RawCommands(commands, limit, server.routing_key)
    except RedisError as error:
        replies = error, error
    findings += [_scripts(replies[0]), *check_info(replies[1])]
    return _in_order(findings)


def _in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    by_id = {each.id: each for each in findings}
    skipped = "Not checked, because the server is unreachable."
    return tuple(by_id.get(id) or Finding(id, "unknown", skipped, {}) for id in CHECKS)


def _describe(error: Exception) -> str:
    """Return the type and the text of an error, for the end of a sentence."""
    return f"{type(error).__name__}: {without_secrets(error)}".rstrip(". ")


def _client(server: Server) -> Finding:
    pool = server.pool
    if pool is None:
        return Finding("client", "unknown", "The client has no connection pool.", {})
    try:
        # Only a connection has the defaults, which differ between releases. It does not connect.
        timeout = pool.connection_class(**pool.connection_kwargs).socket_timeout
    except Exception as error:  # noqa: BLE001  the options of CACHES can be anything
        summary = f"The options of the alias make no connection: {_describe(error)}."
        return Finding("client", "failed", summary, {})
    version, connections = redis.__version__, int(pool.max_connections)
    facts = {"redis_py": version, "socket_timeout": timeout, "max_connections": connections}
    if timeout is None:
        summary = "Without a socket_timeout, a server that hangs makes its clients hang."
        return Finding("client", "warning", summary, facts)
    return Finding("client", "ok", f"redis-py {version} waits {timeout} s for a reply.", facts)


def _unreachable(server: Server, error: Exception) -> Finding:
    facts = {"address": server.address, "error": type(error).__name__}
    summary = f"The server is unreachable: {_describe(error)}."
    return Finding("connection", "failed", summary, facts)


Sample: TypeAlias = tuple[float, float, Any]
"""A round trip that asked for the time: its seconds, when it was sent, and the reply."""


def _samples(key: str, deadline: float) -> Flow[list[Sample]]:
    samples = []
    for _ in range(SAMPLES + 1):
        sent_at, started_at = time.time(), clock.now()
        [reply] = yield RawCommands((("TIME",),), _remaining_seconds(deadline), key)
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
        return _unanswered("clock", "TIME", reply)
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


def _locking(server: Server, deadline: float) -> Flow[Finding]:
    started_at = clock.now()
    steps: list[str] = []
    try:
        yield from _exercise(server, deadline, steps)
    except RedisError as error:
        summary = f"Locks fail at the step {steps[-1]!r}: {_describe(error)}."
        facts = {"step": steps[-1], "error": type(error).__name__}
        return Finding("locking", "failed", summary, facts)
    duration = _ms(clock.now() - started_at)
    summary = f"Acquire, renew, queue, inspect, hand over and release work, in {duration} ms."
    return Finding("locking", "ok", summary, {"duration_ms": duration})


def _scripts(reply: object) -> Finding:
    if isinstance(reply, NoPermissionError):
        summary = f"The server refuses EVAL: {_describe(reply)}."
        return Finding("scripts", "failed", summary, {"needs": "+eval"})
    if isinstance(reply, Exception):
        return _unanswered("scripts", "EVAL", reply)
    return Finding("scripts", "ok", "The server runs scripts.", {})


# What the server reports in its reply to INFO


def _parsed(info: Any) -> dict[str, str]:
    lines = (line.partition(":") for line in text(info).splitlines())
    return {name: value for name, colon, value in lines if colon}


def _number(info: Mapping[str, str], field: str) -> int:
    return int(info.get(field, 0))


def _policy(info: Mapping[str, str]) -> str:
    return info.get("maxmemory_policy", "noeviction")  # absent on servers that never evict


def eviction_policy(key: str) -> Flow[str]:
    """Return what the server that stores `key` does when its memory is full.

    Raises:
        redis.exceptions.RedisError: The server refuses INFO or is unreachable.
    """
    [reply] = yield RawCommands((("INFO", "memory"),), store.REPLY_TIMEOUT_SECONDS, key)
    if isinstance(reply, Exception):
        raise reply
    return _policy(_parsed(reply))


def check_info(reply: Any) -> Iterator[Finding]:
    """Yield the results of the checks that read INFO.

    Args:
        reply: The reply to INFO, or the error instead of it.
    """
    for check in (_eviction, _memory, _persistence, _replication):
        if isinstance(reply, Exception):
            yield _unanswered(check.__name__[1:], "INFO", reply)
        else:
            yield check(_parsed(reply))


def _unanswered(id: str, command: str, error: Exception) -> Finding:
    """Return the result of a check whose command got an error instead of a reply."""
    facts = {"needs": f"+{command.lower()}"} if isinstance(error, NoPermissionError) else {}
    verb = "refuses" if isinstance(error, ResponseError) else "did not reply to"
    return Finding(id, "unknown", f"The server {verb} {command}: {_describe(error)}.", facts)


def _eviction(info: Mapping[str, str]) -> Finding:
    policy = _policy(info)
    facts = {"maxmemory_policy": policy}
    if policy == "noeviction":
        return Finding("eviction", "ok", "The server deletes no keys to free memory.", facts)
    summary = f"When its memory is full, the server can delete held locks ({policy})."
    return Finding("eviction", "warning", summary, facts)


def _memory(info: Mapping[str, str]) -> Finding:
    used = _number(info, "used_memory") - _number(info, "mem_not_counted_for_evict")
    maximum = _number(info, "maxmemory")
    facts = {"used": used, "maxmemory": maximum}
    if not maximum:
        return Finding("memory", "ok", "The server has no maxmemory.", facts)
    summary = f"{used / maximum:.0%} of maxmemory is in use"
    if used < maximum * NEARLY_FULL:
        return Finding("memory", "ok", f"{summary}.", facts)
    if used >= maximum and _policy(info) == "noeviction":
        return Finding("memory", "failed", f"{summary}: no lock can be acquired.", facts)
    summary += ". When it is full, the server refuses new locks, or evicts keys."
    return Finding("memory", "warning", summary, facts)


def _persistence(info: Mapping[str, str]) -> Finding:
    """Judge what a restart loses. INFO does not report ``appendfsync`` and ``save``."""
    aof = info.get("aof_enabled") == "1"
    age = max(0, round(time.time()) - _number(info, "rdb_last_save_time"))
    done = info.get("rdb_last_bgsave_status", "ok") == "ok"
    facts = {"aof": aof, "last_snapshot_age": age, "last_snapshot_done": done}
    if aof and info.get("aof_last_write_status", "ok") != "ok":
        summary = "The server cannot write its append-only file, so it refuses all writes."
        return Finding("persistence", "failed", summary, facts)
    if not done:
        summary = "The last snapshot failed, and by default the server then refuses all writes."
        return Finding("persistence", "warning", summary, facts)
    if aof:
        summary = "The server keeps an append-only file; appendfsync decides what a crash loses."
        return Finding("persistence", "ok", summary, facts)
    summary = f"With no append-only file, a restart loses all locks of the last {age} s."
    return Finding("persistence", "warning", summary, facts)


def _replication(info: Mapping[str, str]) -> Finding:
    role, replicas = info.get("role", "master"), _number(info, "connected_slaves")
    if role != "master":
        summary = "This server is a replica, which accepts no locks."
        return Finding("replication", "failed", summary, {"role": role})
    # INFO has this field only if min-replicas-to-write is set. It does not report the number set.
    in_sync = info.get("min_slaves_good_slaves")
    facts = {"role": role, "replicas": replicas, "in_sync_replicas": in_sync and int(in_sync)}
    if not replicas and not in_sync:
        return Finding("replication", "ok", "A primary without replicas.", facts)
    count = f"{replicas} replica{'' if replicas == 1 else 's'}, asynchronous"
    if in_sync == "0":
        summary = f"{count}: none is in sync, so min-replicas-to-write forbids all writes."
        return Finding("replication", "failed", summary, facts)
    if in_sync:
        summary = f"{count}, {in_sync} in sync: a failover can lose the latest locks."
        return Finding("replication", "ok", summary, facts)
    summary = f"{count}: a failover can lose the latest locks, and all locks of a cut-off primary."
    return Finding("replication", "warning", summary, facts)
