"""Findings on this side of the line: where the client connects to, and how it is set up."""

from typing import Any

import redis

from ..backends import Server
from .finding import Finding, words


def client(server: Server) -> Finding:
    facts: dict[str, Any] = {"redis_py": redis.__version__}
    pool = server.pool
    if pool is None:
        return Finding("client", "unknown", "A client without a connection pool.", facts)
    facts |= {"pool": type(pool).__name__, "max_connections": int(pool.max_connections)}
    try:
        # Made, and not connected: only there are the defaults, which differ between releases.
        connection = pool.connection_class(**pool.connection_kwargs)
    except Exception as error:  # noqa: BLE001  the options of CACHES can be anything
        summary = f"No connection can be made of the alias's options: {words(error)}."
        return Finding("client", "failed", summary, facts)
    facts["socket_timeout"] = connection.socket_timeout
    facts["socket_connect_timeout"] = connection.socket_connect_timeout
    if connection.socket_timeout is None:
        summary = "There is no socket_timeout: a server that hangs is waited for without end."
        return Finding("client", "warning", summary, facts)
    summary = f"redis-py {redis.__version__} waits {connection.socket_timeout} s for an answer."
    return Finding("client", "ok", summary, facts)


def address(server: Server) -> dict[str, Any]:
    """Where the server is; never with what it takes to get in."""
    pool = server.pool
    options = pool.connection_kwargs if pool else {}
    secure = issubclass(pool.connection_class, redis.SSLConnection) if pool else None
    return {"address": server.address, "database": options.get("db") or 0, "tls": secure}
