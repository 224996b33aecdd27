"""Checks of what the server reports in its reply to INFO.

CONFIG GET would report more, but a user who may run it can also read ``requirepass`` and
``masterauth``. So no check uses it.
"""

import re
import time
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from ..engine.operations import Flow, RawCommands
from ..engine.parsing import text
from ..engine.store import REPLY_TIMEOUT_SECONDS
from .results import Finding, describe

NEARLY_FULL = 0.9
"""The part of maxmemory from which on the check warns."""

OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest supported versions."""


def unanswered(id: str, command: str, error: Exception) -> Finding:
    """Return the result of a check whose command got an error instead of a reply."""
    facts = {"needs": f"+{command.lower()}"} if isinstance(error, NoPermissionError) else {}
    verb = "refuses" if isinstance(error, ResponseError) else "did not reply to"
    return Finding(id, "unknown", f"The server {verb} {command}: {describe(error)}.", facts)


class ServerInfo(dict[str, str]):
    """The fields of the reply to INFO."""

    def __init__(self, reply: Any) -> None:
        lines = (line.partition(":") for line in text(reply).splitlines())
        super().__init__((name, value) for name, colon, value in lines if colon)

    def number(self, field: str) -> int:
        return int(self.get(field, 0))

    @property
    def eviction_policy(self) -> str:
        return self.get("maxmemory_policy", "noeviction")  # absent on servers that never evict


def eviction_policy(key: str) -> Flow[str]:
    """Return what the server that stores `key` does when its memory is full.

    Raises:
        redis.exceptions.RedisError: The server refuses INFO or is unreachable.
    """
    [reply] = yield RawCommands((("INFO", "memory"),), REPLY_TIMEOUT_SECONDS, key)
    if isinstance(reply, Exception):
        raise reply
    return ServerInfo(reply).eviction_policy


def check_info(reply: Any) -> list[Finding]:
    """Return the results of all checks in this module.

    Args:
        reply: The reply to INFO, or the error instead of it.
    """
    checks = (_eviction, _memory, _persistence, _replication, _version)
    if isinstance(reply, Exception):
        return [unanswered(check.__name__[1:], "INFO", reply) for check in checks]
    info = ServerInfo(reply)
    return [check(info) for check in checks]


def _eviction(info: ServerInfo) -> Finding:
    policy = info.eviction_policy
    facts = {"maxmemory_policy": policy}
    if policy == "noeviction":
        return Finding("eviction", "ok", "The server deletes no keys to free memory.", facts)
    summary = f"When its memory is full, the server can delete held locks ({policy})."
    return Finding("eviction", "warning", summary, facts)


def _memory(info: ServerInfo) -> Finding:
    used = info.number("used_memory") - info.number("mem_not_counted_for_evict")
    maximum = info.number("maxmemory")
    facts = {"used": used, "maxmemory": maximum}
    if not maximum:
        return Finding("memory", "ok", "The server has no maxmemory.", facts)
    summary = f"{used / maximum:.0%} of maxmemory is in use"
    if used < maximum * NEARLY_FULL:
        return Finding("memory", "ok", f"{summary}.", facts)
    if info.eviction_policy != "noeviction":
        return Finding("memory", "warning", f"{summary}. The server then evicts keys.", facts)
    if used < maximum:
        return Finding("memory", "warning", f"{summary}. At 100%, locking fails.", facts)
    return Finding("memory", "failed", f"{summary}: no lock can be acquired.", facts)


def _persistence(info: ServerInfo) -> Finding:
    """Judge what a restart loses. INFO does not report ``appendfsync`` and ``save``."""
    aof = info.get("aof_enabled") == "1"
    age = max(0, round(time.time()) - info.number("rdb_last_save_time"))
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


def _replication(info: ServerInfo) -> Finding:
    role = info.get("role", "master")
    facts: dict[str, Any] = {"role": role}
    if role != "master":
        facts["primary_link"] = info.get("master_link_status", "unknown")
        summary = "This server is a replica, which accepts no locks."
        return Finding("replication", "failed", summary, facts)
    facts["replicas"] = replicas = [
        {
            "state": replica.get("state", ""),
            "lag": int(replica.get("lag", -1)),
            "bytes_behind": info.number("master_repl_offset") - int(replica.get("offset", 0)),
        }
        for name in info
        if re.fullmatch(r"slave\d+", name)
        for replica in [dict(pair.partition("=")[::2] for pair in info[name].split(","))]
    ]
    # INFO has this field only if min-replicas-to-write is set. It does not report the number set.
    in_sync = info.get("min_slaves_good_slaves")
    if not (replicas or info.number("connected_slaves") or in_sync):
        return Finding("replication", "ok", "A primary without replicas.", facts)
    facts["in_sync_replicas"] = int(in_sync) if in_sync else None
    count = f"{len(replicas)} replica{'' if len(replicas) == 1 else 's'}, asynchronous"
    if in_sync == "0":
        summary = f"{count}: none is in sync, so min-replicas-to-write forbids all writes."
        return Finding("replication", "failed", summary, facts)
    if in_sync:
        summary = f"{count}, {in_sync} in sync: a failover can lose the latest locks."
        return Finding("replication", "ok", summary, facts)
    summary = f"{count}: a failover can lose the latest locks, and all locks of a cut-off primary."
    return Finding("replication", "warning", summary, facts)


def _version(info: ServerInfo) -> Finding:
    valkey = info.get("valkey_version")
    product = "Valkey" if valkey else "Redis"
    number = valkey or info.get("redis_version", "")
    facts = {"product": product, "version": number}
    version = tuple(map(int, re.findall(r"\d+", number)[:2]))
    if not version:
        return Finding("version", "unknown", f"The server's version is {number!r}.", facts)
    if version >= OLDEST[product]:
        return Finding("version", "ok", f"{product} {number}.", facts)
    oldest = ".".join(map(str, OLDEST[product]))
    summary = f"{product} {number} is too old: the oldest supported version is {oldest}."
    return Finding("version", "failed", summary, facts)
