"""The results of a health check."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..redaction import without_secrets

Status: TypeAlias = Literal["ok", "unknown", "warning", "failed"]

STATUSES: tuple[Status, ...] = ("ok", "unknown", "warning", "failed")
"""All statuses, from the best to the worst."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one part of the health check."""

    id: str
    """The id of this part. The documentation lists all ids, with a remedy for each."""

    status: Status
    """``"ok"``, ``"unknown"`` (the server did not say), ``"warning"`` (locks can be lost) or
    ``"failed"`` (locking does not work, or is not safe)."""

    summary: str
    """One sentence about the result. It can quote the server."""

    facts: Mapping[str, Any]
    """The values behind the result, which can be serialized as JSON."""


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


def words(error: Exception) -> str:
    """Return the text of an error, for the end of a sentence."""
    return f"{type(error).__name__}: {without_secrets(error)}".rstrip(". ")
