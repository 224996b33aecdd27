"""The outcomes of holds and acquisitions: their words and their importance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


@dataclass(frozen=True, slots=True)
class Outcome:
    what: str
    """Its name in the data, in the style sheet and in the ids of the marks."""

    word: str | Promise

    meaning: str | Promise

    weight: int = 0
    """Above 0, the outcome is unusual, and each chart marks it."""

    @property
    def is_end(self) -> bool:
        return self.what not in ("held", "waiting")

    @property
    def is_wait(self) -> bool:
        """Whether the span is a wait in the queue and not a hold."""
        return self.what in ("waiting", "skipped", "refused")


OUTCOMES = {
    each.what: each
    for each in (
        Outcome("held", pgettext_lazy("of a lock", "held now"), _("its lease is running")),
        Outcome("waiting", pgettext_lazy("of a lock", "waiting"), _("it waited in the queue")),
        Outcome(
            "released",
            pgettext_lazy("of a lock", "released"),
            _("by its holder, when it was done"),
        ),
        Outcome("passed", pgettext_lazy("of a lock", "passed on"), _("to the next holder")),
        Outcome(
            "skipped",
            pgettext_lazy("of a lock", "skipped"),
            _("a task that ended without having run"),
            1,
        ),
        Outcome("refused", pgettext_lazy("of a lock", "refused"), _("it was not acquired"), 2),
        Outcome("stale", pgettext_lazy("of a lock", "stale"), _("its renewal is overdue"), 3),
        Outcome("forced", pgettext_lazy("of a lock", "forced"), _("released by an operator"), 4),
        Outcome("expired", pgettext_lazy("of a lock", "expired"), _("its lease expired"), 5),
        Outcome(
            "lost",
            pgettext_lazy("of a lock", "lost"),
            _("its lease expired, and its holder was still there"),
            6,
        ),
    )
}


def outcome(what: str) -> Outcome:
    return OUTCOMES.get(what) or Outcome(what, what, "")


def legend(whats: Iterable[str]) -> list[Outcome]:
    """Return the outcomes that occur, in the order of their weights."""
    occurring = set(whats)
    return [each for each in OUTCOMES.values() if each.what in occurring]
