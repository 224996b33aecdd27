"""Choose holders by name, pattern or age, and take their locks from them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from django_redislock.manager import LockManager
from django_redislock.snapshots import Holding, LockInfo
from django_redislock.text import age, printable, short_duration


class Held(NamedTuple):
    name: str
    holding: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which holders are meant: those of `names`, or of all names that match `pattern`."""

    names: tuple[str, ...] = ()
    """Each has to be held."""

    pattern: str | None = None
    """Asked only without `names`; None: every lock."""

    older_than: float = -1
    """Only who has held for longer, in seconds; negative: whoever holds."""

    token: str | None = None
    """Only the holder who owns this token."""

    def refuses(self, holding: Holding) -> str | None:
        """Say why `holding` is not meant, or nothing if it is."""
        if self.token is not None and holding.token != self.token:
            return "is not held with that token"
        if age(holding) <= self.older_than:
            return f"has been held for {short_duration(age(holding))} only"
        return None


@dataclass(slots=True)
class Outcome:
    chosen: list[Held] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """A line for each name that was asked for and can't be had."""


def choose(locks: LockManager, choice: Choice) -> Outcome:
    outcome = Outcome()
    if not choice.names:
        outcome.chosen += _matching(locks.active(choice.pattern), choice)
        return outcome
    for name in dict.fromkeys(choice.names):
        _choose_named(name, locks.get(name), choice, outcome)
    return outcome


def release(locks: LockManager, held: Held) -> bool:
    """Release `held` by its token, so that nobody loses it who came after."""
    return bool(locks.force_release(held.name, held.holding.token))


def _matching(infos: Iterable[LockInfo], choice: Choice) -> Iterator[Held]:
    for info in infos:
        for holding in info.holders:
            if choice.refuses(holding) is None:
                yield Held(info.name, holding)


def _choose_named(name: str, info: LockInfo | None, choice: Choice, outcome: Outcome) -> None:
    if info is None or not info.holders:
        outcome.refused.append(f"{printable(name)} is not held")
        return
    verdicts = [(holding, choice.refuses(holding)) for holding in info.holders]
    meant = [Held(name, holding) for holding, refusal in verdicts if refusal is None]
    outcome.chosen += meant
    if not meant:
        outcome.refused.append(f"{printable(name)} {verdicts[0][1]}")
