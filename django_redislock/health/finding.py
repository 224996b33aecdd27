"""What was found, as facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..secrecy import without_secrets

Status: TypeAlias = Literal["ok", "unknown", "warning", "failed"]

STATUSES: tuple[Status, ...] = ("ok", "unknown", "warning", "failed")
"""From the best to the worst."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing that locking stands on."""

    id: str
    """Which thing; the reference tells of each, and of its cure."""

    status: Status
    """``failed``: locks can't be had, or not be relied on. ``warning``: they can be lost.
    ``unknown``: it could not be asked."""

    summary: str
    """One sentence. May quote the server's words."""

    facts: Mapping[str, Any]
    """The numbers and names behind it: what JSON can take."""


@dataclass(frozen=True, slots=True)
class Health:
    """All findings on the server of one alias, as they stood at one moment."""

    alias: str
    """The alias in ``CACHES``."""

    findings: tuple[Finding, ...]
    """Always the same ids, in the same order."""

    @property
    def status(self) -> Status:
        """That of the worst finding."""
        return max((each.status for each in self.findings), key=STATUSES.index)

    def get(self, id: str) -> Finding:
        """The finding with this id; `KeyError` if there is none."""
        return {each.id: each for each in self.findings}[id]


def words(error: Exception) -> str:
    """What an error says, to be the end of a sentence."""
    return f"{type(error).__name__}: {without_secrets(error)}".rstrip(". ")
