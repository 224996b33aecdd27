"""Health checks: whether locking works now, and what could make it fail.

No lock depends on this module. It sends commands only when an operator asks for a check. It does
not use CONFIG, because a user who may run CONFIG GET can read ``requirepass`` and ``masterauth``.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal, TypeAlias, get_args

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from . import clock
from .backends import Server, uses_custom_client
from .engine import queries, store
from .engine.inbox import blocking_read
from .engine.operations import Batch, Call, Command, Flow, RawCommands
from .engine.timing import FINAL_REPLY_TIMEOUT_SECONDS, REPLY_TIMEOUT_SECONDS
from .exceptions import LockLost
from .identity import payload_text
from .redaction import without_secrets

NAME_PREFIX = "django-redislock:probe:"
"""Of the names of test locks, which nothing else uses."""

LOST = "The test lock disappeared before it was released: the server deleted it"

READ_GRANT = "read the grant"
"""The step of the test lock in which its waiter reads what the handover sent."""

GRANT_WAIT_SECONDS = 0.1
"""Seconds for which the server may wait for the grant, which it should have already. Not a whole
number, because waiters wait for a part of a second, too."""

SAMPLES = 10
"""The number of round trips that are measured."""

MAX_CLOCK_OFFSET_SECONDS = 1.0
"""From this difference on, the times that people read are visibly wrong."""

NEARLY_FULL = 0.9
"""The part of maxmemory from which on the check warns."""

RIGHTS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    (): ("TIME",),
    ("return 0", "0"): ("EVAL",),
    ("x", "0"): ("EVALSHA",),
    ("KEY",): ("EXISTS", "GET", "HGETALL", "HVALS", "PERSIST"),
    ("KEY", "x"): (
        *("BLPOP", "HDEL", "HGET", "HMGET", "PEXPIREAT", "RPUSH"),
        *("ZMSCORE", "ZREM", "ZSCAN", "ZSCORE"),
    ),
    ("KEY", "x", "x"): ("SET", "ZADD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE"),
    ("KEY", "x", "x", "x"): ("HSET",),
    ("KEY", "1000"): ("PEXPIRE",),
    ("KEY", "KEY"): ("DEL",),
}
"""The commands that locks need, by their arguments in a test, with KEY for a new key. A server
checks the rights first, so those that write have an invalid argument. RPUSH has none, but what it
writes is removed, or expires."""

Status: TypeAlias = Literal["ok", "unknown", "warning", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""All statuses, from the best to the worst."""

REMEDIES = {
    "connection": "Start the server. Check LOCATION, the password, TLS and the firewall.",
    "locking": "Correct what another check reports. End a long script with SCRIPT KILL, and a "
    "pause with CLIENT UNPAUSE. Grant the user the documented rights.",
    "round_trip": "Use a server in the same network. See SLOWLOG and LATENCY DOCTOR.",
    "scripts": "Grant the user the rights that the documentation lists.",
    "eviction": "Set maxmemory-policy noeviction, on a server that is not a cache.",
    "memory": "Increase maxmemory, or store less on this server.",
    "persistence": "Set appendonly yes. After a failed write, check the server's disk.",
    "replication": "Use the primary's address. Set min-replicas-to-write, and repair replicas.",
    "clock": "Run NTP on both machines.",
    "client": "Correct LOCATION and OPTIONS. Set socket_timeout, for example to 5 seconds.",
}

CAUSES = {
    "BLPOP": "Waiters need BLPOP. Use a server or a proxy that executes it, and grant the user "
    "+blpop.",
    "HELLO": "The server does not execute HELLO. Set protocol=2 in the options of the client.",
}
"""More exact remedies, by the command that the server does not execute."""

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
        if self.status not in ("warning", "failed"):
            return ""
        return CAUSES.get(self.facts.get("command", ""), REMEDIES[self.id])


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
    """Acquire and release a test lock, and return how many seconds that took."""
    started_at = clock.now()
    request = _request(server, limit)
    yield _without_history(store.acquire(request, "", None), limit)
    remaining = _remaining_seconds(started_at + limit)
    if not (yield _without_history(store.release(request.keys, request.token), remaining)):
        raise LockLost(LOST, lock_name=request.keys.name)
    return clock.now() - started_at


def _request(server: Server, limit: float) -> store.AcquireRequest:
    """Return a request for a lock that nothing else uses. It expires soon after the limit."""
    keys = server.keys.of(NAME_PREFIX + uuid.uuid4().hex)
    token, payload = uuid.uuid4().hex, payload_text({}, renewed=False)
    lease = limit + 2 * FINAL_REPLY_TIMEOUT_SECONDS
    return store.AcquireRequest(
        keys, token, "mutex", capacity=1, weight=1, lease=lease, payload=payload
    )


def _without_history(call: Call, limit: float | None = None) -> Call:
    """Return a call that records no event: its last argument is the number of events to keep."""
    return Call(call.script, call.keys, (*call.args[:-1], 0), limit)


def _remaining_seconds(deadline: float) -> float:
    """Return how long to wait for a reply. The last reply gets a minimum."""
    return max(deadline - clock.now(), FINAL_REPLY_TIMEOUT_SECONDS)


# All checks

Result: TypeAlias = tuple[Status, str, Mapping[str, Any]]
"""The status, the summary and the facts of a `Finding`."""


def examine(server: Server, timeout: float) -> Flow[Health]:
    """Run all checks in bounded time. A problem is a result, not an exception."""
    deadline = clock.now() + timeout
    results: dict[str, Result] = {}
    try:
        results["client"] = _client(server)
        results |= yield from _measure(deadline)
    except Exception as error:  # noqa: BLE001  any of them also ends every attempt to lock
        return unreached(server, error, **results)
    where = server.address or "the server that the client found"
    results["connection"] = "ok", f"Connected to {where}.", {"address": server.address}
    request = _request(server, _remaining_seconds(deadline))
    results["locking"] = yield from _locking(request, deadline)
    with suppress(RedisError):  # Without a reply, the other checks are not made.
        results["scripts"] = yield from _scripts(server, f"{request.keys.lock}:rights", deadline)
        try:
            info = yield from read_info(_remaining_seconds(deadline))
            results |= {id: check(info) for id, check in INFO_CHECKS.items()}
        except ResponseError as error:
            results |= dict.fromkeys(INFO_CHECKS, _refused("INFO", error))
    return Health(server.alias, _findings(results))


def unreached(server: Server, error: Exception, **results: Result) -> Health:
    """Return the results if that error keeps the client from being created or from connecting."""
    facts = {"address": server.address, "error": type(error).__name__}
    if isinstance(error, ResponseError) and "hello" in str(error).lower():
        facts["command"] = "HELLO"
    results["connection"] = "failed", unavailable_text(server.alias, error), facts
    if not isinstance(error, RedisError):
        results["client"] = "failed", f"No client can be created: {_describe(error)}.", {}
    return Health(server.alias, _findings(results))


def unavailable_text(alias: str, error: Exception) -> str:
    """Return a sentence on why the locks of a cache alias are not available."""
    setting = "REDISLOCK_CLIENT" if uses_custom_client(alias) else f"CACHES[{alias!r}]"
    what = f"The locks on {alias!r} can't be reached"
    if isinstance(error, AuthenticationError):
        what = f"The server refuses the user name or the password of {setting}"
    elif isinstance(error, NoPermissionError):
        what = f"The user of {setting} lacks a right that locks need"
    elif isinstance(error, ResponseError):
        what = f"The server refuses a request about the locks on {alias!r}"
    return f"{what}: {_describe(error)}."


def _findings(results: Mapping[str, Result]) -> tuple[Finding, ...]:
    skipped: Result = "unknown", "Not checked, because the connection failed.", {}
    return tuple(Finding(id, *results.get(id, skipped)) for id in CHECKS)


def _describe(error: Exception) -> str:
    """Return the type and the text of an error, for the end of a sentence."""
    return f"{type(error).__name__}: {without_secrets(error)}".rstrip(". ")


def _client(server: Server) -> Result:
    pool = server.pool
    # Only a connection has the defaults, which differ between releases. It does not connect.
    timeout = pool.connection_class(**pool.connection_kwargs).socket_timeout
    version, connections = redis.__version__, int(pool.max_connections)
    facts = {"redis_py": version, "socket_timeout": timeout, "max_connections": connections}
    if timeout is None:
        summary = "Without a socket_timeout, a server that hangs makes its clients hang."
        return "warning", summary, facts
    return "ok", f"redis-py {version} waits {timeout} s for a reply.", facts


def _measure(deadline: float) -> Flow[dict[str, Result]]:
    """Measure round trips that ask for the time, and compare the clocks by the last one."""
    durations = []
    for _ in range(SAMPLES + 1):
        sent_at, started_at = time.time(), clock.now()
        [reply] = yield RawCommands((("TIME",),), _remaining_seconds(deadline))
        durations.append(clock.now() - started_at)
    del durations[0]  # It has also connected.
    middle, worst = _ms(median(durations)), _ms(max(durations))
    facts = {"median_ms": middle, "worst_ms": worst, "samples": SAMPLES}
    summary = f"The median of {SAMPLES} is {middle} ms, and the worst {worst} ms"
    round_trip: Result = "ok", f"{summary}.", facts
    if worst >= FINAL_REPLY_TIMEOUT_SECONDS * 1000:
        round_trip = "warning", f"{summary}: too slow for short waits.", facts
    return {"round_trip": round_trip, "clock": _clock(sent_at, durations[-1], reply)}


def _clock(sent_at: float, duration: float, reply: Any) -> Result:
    if isinstance(reply, Exception):
        return _refused("TIME", reply)
    seconds, microseconds = map(int, reply)
    uncertainty = duration / 2
    offset = seconds + microseconds / 1_000_000 - (sent_at + uncertainty)
    facts = {"offset_ms": _ms(offset), "uncertainty_ms": _ms(uncertainty)}
    side = "ahead" if offset > 0 else "behind"
    summary = f"The server's clock is {abs(_ms(offset))} ms {side} (± {_ms(uncertainty)} ms)"
    summary += ", which does not affect locks"
    if abs(offset) < MAX_CLOCK_OFFSET_SECONDS + uncertainty:
        return "ok", f"{summary}.", facts
    return "warning", f"{summary}, but the times that people read.", facts


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _locking(request: store.AcquireRequest, deadline: float) -> Flow[Result]:
    """Make each operation of a lock once, including a handover to a waiter."""
    started_at = clock.now()
    keys, holder, waiting = request.keys, request.token, replace(request, token=uuid.uuid4().hex)
    steps = {
        "acquire": store.acquire(request, "", None),
        "renew": store.renew([keys], "renew", [(holder, 0)]),
        "queue": store.acquire(waiting, f"{holder} 1 1", None),
        "heartbeat": store.heartbeat([keys], holder, 1, [waiting.token]),
        "inspect": queries.lock_rows([keys]),
        "hand over": store.release(keys, holder),
        "confirm": store.acquire(waiting, "", None),
        "release": store.release(keys, waiting.token),
    }
    steps = {step: _without_history(call) for step, call in steps.items()}
    step, inbox = "", f"{keys.inboxes}{holder}"
    try:
        for name, call in steps.items():
            step, call.limit = name, _remaining_seconds(deadline)
            if not (yield call) and step in ("hand over", "release"):
                raise LockLost(LOST)
            if name == "hand over":
                step = READ_GRANT
                yield from _read_grant(inbox, _remaining_seconds(deadline))
    except RedisError as error:
        with suppress(RedisError):  # First the waiter, which would otherwise get the lock.
            limit = _remaining_seconds(deadline)
            yield Batch((steps["release"], steps["hand over"]), limit, apart=True)
        facts = {"step": step, "error": type(error).__name__}
        if step == READ_GRANT and not isinstance(error, RedisTimeoutError):
            facts["command"] = "BLPOP"
        return "failed", f"Locks fail at the step {step!r}: {_describe(error)}.", facts
    duration = _ms(clock.now() - started_at)
    summary = f"Acquire, renew, queue, inspect, hand over and release work, in {duration} ms."
    return "ok", summary, {"duration_ms": duration}


def _read_grant(inbox: str, limit: float) -> Flow[None]:
    """Read the grant of the test lock like a waiter, by a command that blocks.

    There is none if the server was so slow that it took the waiter for dead.
    """
    [reply] = yield blocking_read(inbox, GRANT_WAIT_SECONDS, limit)
    if isinstance(reply, Exception):
        raise reply


def _scripts(server: Server, key: str, deadline: float) -> Flow[Result]:
    """Send `RIGHTS` to find out which commands, and which keys, the user may not use."""
    commands: dict[str, Command] = {}
    for arguments, names in RIGHTS.items():
        of_key = [key if each == "KEY" else each for each in arguments]
        commands |= {name: (name, *of_key) for name in names}
    limit = _remaining_seconds(deadline)
    received = yield RawCommands(tuple(commands.values()), limit)
    replies = dict(zip(commands, received, strict=True))
    keys = f"~{server.keys.index.removesuffix('index')}*"
    missing = {
        # The server refuses to access the key only if the user may use the command.
        keys if " access " in str(reply) else f"+{name.lower()}"
        for name, reply in replies.items()
        if isinstance(reply, NoPermissionError)
    }
    if missing:
        needs = " ".join(sorted(missing))
        return "failed", f"The user lacks rights that locks need: {needs}.", {"needs": needs}
    if isinstance(replies["EVAL"], Exception):
        return _refused("EVAL", replies["EVAL"])
    return "ok", "The server runs scripts.", {}


# What the server reports in its reply to INFO


def read_info(limit: float = REPLY_TIMEOUT_SECONDS) -> Flow[dict[str, Any]]:
    """Return the fields of INFO, with numbers as int, or raise the error that is the reply."""
    [reply] = yield RawCommands((("INFO",),), limit)
    if isinstance(reply, Exception):
        raise reply
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    fields = {name: int(value) if value.isdecimal() else value for name, _, value in lines}
    return {"maxmemory_policy": "noeviction"} | fields  # absent on servers that never evict


def _refused(command: str, error: Exception) -> Result:
    """Return the result of a check whose command got an error instead of a reply."""
    return "unknown", f"The server refuses {command}: {_describe(error)}.", {}


def _eviction(info: Mapping[str, Any]) -> Result:
    policy = info["maxmemory_policy"]
    facts = {"maxmemory_policy": policy}
    if policy == "noeviction":
        return "ok", "The server deletes no keys to free memory.", facts
    summary = f"When its memory is full, the server can delete held locks ({policy})."
    return "warning", summary, facts


def _memory(info: Mapping[str, Any]) -> Result:
    used = info.get("used_memory", 0) - info.get("mem_not_counted_for_evict", 0)
    maximum = info.get("maxmemory", 0)
    facts = {"used": used, "maxmemory": maximum}
    if not maximum:
        return "ok", "The server has no maxmemory.", facts
    summary = f"{used / maximum:.0%} of maxmemory is in use"
    if used < maximum * NEARLY_FULL:
        return "ok", f"{summary}.", facts
    if used >= maximum and info["maxmemory_policy"] == "noeviction":
        return "failed", f"{summary}: no lock can be acquired.", facts
    summary += ". When it is full, the server refuses new locks, or evicts keys."
    return "warning", summary, facts


def _persistence(info: Mapping[str, Any]) -> Result:
    """Judge what a restart loses. INFO does not report ``appendfsync`` and ``save``."""
    aof = info.get("aof_enabled") == 1
    age = max(0, round(time.time()) - info.get("rdb_last_save_time", 0))
    done = info.get("rdb_last_bgsave_status", "ok") == "ok"
    facts = {"aof": aof, "last_snapshot_age": age, "last_snapshot_done": done}
    if aof and info.get("aof_last_write_status", "ok") != "ok":
        summary = "The server cannot write its append-only file, so it refuses all writes."
        return "failed", summary, facts
    if not done:
        summary = "The last snapshot failed, and by default the server then refuses all writes."
        return "warning", summary, facts
    if aof:
        summary = "The server keeps an append-only file; appendfsync decides what a crash loses."
        return "ok", summary, facts
    summary = f"With no append-only file, a restart loses all locks of the last {age} s."
    return "warning", summary, facts


def _replication(info: Mapping[str, Any]) -> Result:
    role, replicas = info.get("role", "master"), info.get("connected_slaves", 0)
    if role != "master":
        return "failed", "This server is a replica, which accepts no locks.", {"role": role}
    # INFO has this field only if min-replicas-to-write is set. It does not report the number set.
    in_sync = info.get("min_slaves_good_slaves")
    facts = {"role": role, "replicas": replicas, "in_sync_replicas": in_sync}
    if not replicas and in_sync is None:
        return "ok", "A primary without replicas.", facts
    count = f"{replicas} replica{'' if replicas == 1 else 's'}, asynchronous"
    if in_sync == 0:
        summary = f"{count}: none is in sync, so min-replicas-to-write forbids all writes."
        return "failed", summary, facts
    if in_sync:
        return "ok", f"{count}, {in_sync} in sync: a failover can lose the latest locks.", facts
    summary = f"{count}: a failover can lose the latest locks, and all locks of a cut-off primary."
    return "warning", summary, facts


INFO_CHECKS: dict[str, Callable[[Mapping[str, Any]], Result]] = {
    "eviction": _eviction,
    "memory": _memory,
    "persistence": _persistence,
    "replication": _replication,
}
