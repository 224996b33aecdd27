"""Findings on what the server is given, and on what it keeps: judged by what it tells."""

import re
import time
from typing import Any

from ..engine.operations import Flow, RawCommands
from ..engine.store import REPLY_TIMEOUT_SECONDS
from .finding import Finding
from .told import NotTold, Told

NEARLY_FULL = 0.9
"""The part of maxmemory from which on it is warned of."""

OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest versions that are supported."""


def eviction_policy(key: str) -> Flow[str]:
    """What the server that keeps `key` does when its memory is full. Raises redis-py's errors."""
    [answer] = yield RawCommands((("INFO", "memory"),), REPLY_TIMEOUT_SECONDS, key)
    if isinstance(answer, Exception):
        raise answer
    return _policy(Told(answer))


def _policy(told: Told) -> str:
    return told.get("maxmemory_policy", "noeviction")  # absent on servers that never evict


def eviction(told: Told) -> Finding:
    policy = _policy(told)
    facts = {"maxmemory_policy": policy}
    if policy == "noeviction":
        return Finding("eviction", "ok", "The server drops nothing to make room.", facts)
    summary = f"The server evicts by {policy}: when its memory is full it may drop a held lock."
    return Finding("eviction", "warning", summary, facts)


def memory(told: Told) -> Finding:
    used = told.number("used_memory") - told.number("mem_not_counted_for_evict")
    most = told.number("maxmemory")
    facts = {"used": used, "maxmemory": most}
    if not most:
        return Finding("memory", "ok", "The server has no maxmemory.", facts)
    part = f"{used / most:.0%} of maxmemory is in use"
    if used < most * NEARLY_FULL:
        return Finding("memory", "ok", f"{part}.", facts)
    if used >= most and _policy(told) == "noeviction":
        return Finding("memory", "failed", f"{part}: no lock can be acquired.", facts)
    return Finding("memory", "warning", f"{part}: what then happens is said by eviction.", facts)


SNAPSHOT_FAILED = (
    "The last snapshot failed. By default, a server that is configured to save snapshots then "
    "refuses all writes."
)


def persistence(told: Told) -> Finding:
    """Judge what a restart loses. INFO does not tell ``appendfsync`` and ``save``."""
    aof = told.get("aof_enabled", "0") == "1"
    age = max(0, round(time.time()) - told.number("rdb_last_save_time"))
    done = told.get("rdb_last_bgsave_status", "ok") == "ok"
    facts = {"aof": aof, "last_snapshot_age": age, "last_snapshot_done": done}
    if aof and told.get("aof_last_write_status", "ok") != "ok":
        summary = "The server could not write its append-only file and refuses all writes."
        return Finding("persistence", "failed", summary, facts)
    if not done:
        return Finding("persistence", "warning", SNAPSHOT_FAILED, facts)
    if aof:
        summary = (
            "The server keeps an append-only file. Its appendfsync setting, which INFO does not "
            "tell, decides how many of the latest locks a crash of the machine loses."
        )
        return Finding("persistence", "ok", summary, facts)
    summary = (
        "The server keeps no append-only file. A restart restores the leases of the last "
        f"snapshot, if there is one, and loses every later lock. Last save: {age} s ago."
    )
    return Finding("persistence", "warning", summary, facts)


def replication(told: Told) -> Finding:
    role = told.get("role", "master")
    if role != "master":
        facts: dict[str, Any] = {
            "role": role,
            "primary_link": told.get("master_link_status", "unknown"),
        }
        summary = "This server is a replica: locks can be taken at its primary only."
        return Finding("replication", "failed", summary, facts)
    replicas = told.replicas()
    # INFO has this field only if min-replicas-to-write is set. It does not tell the number set.
    in_sync = told.get("min_slaves_good_slaves", "")
    if not (replicas or told.number("connected_slaves") or in_sync):
        facts = {"role": role, "replicas": []}
        return Finding("replication", "ok", "A primary without replicas.", facts)
    described = [_replica(told, each) for each in replicas]
    return _with_replicas(described, int(in_sync) if in_sync else None)


def _replica(told: Told, replica: Any) -> dict[str, Any]:
    behind = told.number("master_repl_offset") - int(replica.get("offset", 0))
    return {
        "state": replica.get("state", ""),
        "lag": int(replica.get("lag", -1)),
        "bytes_behind": behind,
    }


def _with_replicas(replicas: list[dict[str, Any]], in_sync: int | None) -> Finding:
    facts = {"role": "master", "replicas": replicas, "in_sync_replicas": in_sync}
    count = f"{len(replicas)} replica{'' if len(replicas) == 1 else 's'}, asynchronous"
    if in_sync == 0:
        summary = f"{count}: none is in sync, and min-replicas-to-write is set. It takes no locks."
        return Finding("replication", "failed", summary, facts)
    if in_sync:
        summary = (
            f"{count}, {in_sync} in sync: a failover can lose the latest locks. A primary that is "
            "cut off soon stops taking locks, because min-replicas-to-write is set."
        )
        return Finding("replication", "ok", summary, facts)
    summary = (
        f"{count}: a failover can lose the latest locks. A primary that is cut off keeps taking "
        "locks, and the failover loses those too. Fencing tokens keep growing."
    )
    return Finding("replication", "warning", summary, facts)


def version(told: Told) -> Finding:
    valkey = told.get("valkey_version", "")
    product = "Valkey" if valkey else "Redis"
    number = valkey or told.get("redis_version")
    facts = {"product": product, "version": number}
    if not (found := tuple(map(int, re.findall(r"\d+", number)[:2]))):
        raise NotTold(f"The server's version is {number!r}.")
    oldest = OLDEST[product]
    if found >= oldest:
        return Finding("version", "ok", f"{product} {number}.", facts)
    needed = ".".join(map(str, oldest))
    summary = f"{product} {number} is too old: {product} {needed} is the first that is supported."
    return Finding("version", "failed", summary, facts)
