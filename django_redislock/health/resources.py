"""Findings on what the server is given, and on what it keeps: judged by what it tells."""

import re
import time
from typing import Any

from ..engine.flows import PATIENCE
from ..engine.ops import Ask, Flow
from .finding import Finding, Status
from .told import NotTold, Told

NEARLY_FULL = 0.9
"""The part of maxmemory from which on it is warned of."""

OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest versions that are supported."""


def eviction_policy(key: str) -> Flow[str]:
    """What the server that keeps `key` does when its memory is full. Raises redis-py's errors."""
    # INFO, as CONFIG is often forbidden.
    [answer] = yield Ask((("INFO", "memory"),), PATIENCE, key)
    if isinstance(answer, Exception):
        raise answer
    return _policy(Told(answer, {}))


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


def persistence(told: Told) -> Finding:
    aof = told.get("aof_enabled", "0") == "1"
    facts: dict[str, Any] = {"aof": aof, "save": told.setting("save")}
    if aof:
        return _append_only_file(told, facts | {"appendfsync": told.setting("appendfsync")})
    if not facts["save"]:
        summary = "Nothing is written to disk: a restart of the server loses every lock."
        return Finding("persistence", "warning", summary, facts)
    return _snapshots(told, facts)


FSYNC: dict[str, tuple[Status, str]] = {
    "always": ("ok", "a restart loses nothing that was answered"),
    "everysec": ("ok", "a crash of its machine loses the locks of about the last second"),
    "no": ("warning", "a crash of its machine loses the locks of about the last 30 seconds"),
}


SNAPSHOT_FAILED = "The last snapshot failed: by default the server then refuses all writes."


def _is_snapshot_done(told: Told) -> bool:
    return told.get("rdb_last_bgsave_status", "ok") == "ok"


def _append_only_file(told: Told, facts: dict[str, Any]) -> Finding:
    if told.get("aof_last_write_status", "ok") != "ok":
        summary = "The server could not write its append-only file, and refuses all writes."
        return Finding("persistence", "failed", summary, facts)
    if facts["save"] and not _is_snapshot_done(told):
        return Finding("persistence", "warning", SNAPSHOT_FAILED, facts)
    status, loss = FSYNC[facts["appendfsync"]]
    summary = f"The server keeps an append-only file: {loss}."
    return Finding("persistence", status, summary, facts)


def _snapshots(told: Told, facts: dict[str, Any]) -> Finding:
    age = max(0, round(time.time()) - told.number("rdb_last_save_time"))
    done = _is_snapshot_done(told)
    facts |= {"last_snapshot_age": age, "last_snapshot_done": done}
    if not done:
        return Finding("persistence", "warning", SNAPSHOT_FAILED, facts)
    summary = (
        f"The server writes snapshots only: a restart loses the locks of the time since the last "
        f"one, {age} s ago, and brings back the leases that it saw."
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
    wants_some = told.get("min_slaves_good_slaves", "")  # told by one with min-replicas-to-write
    if not (replicas or told.number("connected_slaves") or wants_some):
        facts = {"role": role, "replicas": []}
        return Finding("replication", "ok", "A primary without replicas.", facts)
    return _with_replicas(told, [_replica(told, each) for each in replicas])


def _replica(told: Told, replica: Any) -> dict[str, Any]:
    behind = told.number("master_repl_offset") - int(replica.get("offset", 0))
    return {
        "state": replica.get("state", ""),
        "lag": int(replica.get("lag", -1)),
        "bytes_behind": behind,
    }


def _with_replicas(told: Told, replicas: list[dict[str, Any]]) -> Finding:
    needed = int(told.setting("min-replicas-to-write"))
    longest = int(told.setting("min-replicas-max-lag"))
    good = sum(each["state"] == "online" and each["lag"] <= longest for each in replicas)
    facts = {
        "role": "master",
        "replicas": replicas,
        "min_replicas_to_write": needed,
        "min_replicas_max_lag": longest,
    }
    count = f"{len(replicas)} replica{'' if len(replicas) == 1 else 's'}, asynchronous"
    if needed > good:
        summary = f"{count}; {needed} must be in touch for a write, {good} are: it takes no locks."
        return Finding("replication", "failed", summary, facts)
    if needed:
        summary = (
            f"{count}: a failover can lose the locks of its last moments. A primary that is cut "
            f"off stops taking locks after {longest} s."
        )
        return Finding("replication", "ok", summary, facts)
    summary = (
        f"{count}: a failover can lose the locks of its last moments, and a primary that is cut "
        "off goes on taking locks that are lost then. Fencing tokens keep growing."
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
