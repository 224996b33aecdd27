"""The results of a health check."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..redaction import without_secrets

Status: TypeAlias = Literal["ok", "unknown", "warning", "failed"]

STATUSES: tuple[Status, ...] = ("ok", "unknown", "warning", "failed")
"""All statuses, from the best to the worst."""

REMEDIES = {
    "connection": "Start the server. Check LOCATION, the password, TLS and the firewall.",
    "locking": "Correct what replication, memory, scripts or persistence reports.",
    "round_trip": "Use a server in the same network. See SLOWLOG and LATENCY DOCTOR.",
    "scripts": "Grant the user the rights that the documentation lists.",
    "eviction": "Set maxmemory-policy noeviction, on a server that is not a cache.",
    "memory": "Increase maxmemory, or store less on this server.",
    "persistence": "Set appendonly yes. After a failed write, check the server's disk.",
    "replication": "Use the primary's address. Set min-replicas-to-write, and repair replicas.",
    "clock": "Run NTP on both machines.",
    "version": "Upgrade the server.",
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


def describe(error: Exception) -> str:
    """Return the type and the text of an error, for the end of a sentence."""
    return f"{type(error).__name__}: {without_secrets(error)}".rstrip(". ")
