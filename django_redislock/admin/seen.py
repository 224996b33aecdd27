"""Which holders a page showed, so that no other is released from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.core.exceptions import BadRequest

from ..info import Holding, LockInfo
from ..manager import locks
from ..names import check_name


@dataclass(frozen=True, slots=True)
class Seen:
    """A holder as a page showed it, by its fencing token: unlike the owner's it is no secret."""

    name: str
    fence_token: int

    @classmethod
    def parse(cls, text: str) -> list[Seen]:
        """Read what `dump` wrote and a browser sent back; `BadRequest` if it is anything else."""
        try:
            return [cls(check_name(name), int(fence)) for name, fence in json.loads(text)]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadRequest("seen is not a list of names and fencing tokens") from error

    @staticmethod
    def dump(seen: Iterable[Seen]) -> str:
        return json.dumps([(one.name, one.fence_token) for one in seen], ensure_ascii=False)

    def holding(self) -> Holding | None:
        """Return what is still held of it; None if it is over, whoever came after."""
        info = locks.get(self.name)
        holders = info.holders if info else ()
        return next((h for h in holders if h.fence_token == self.fence_token), None)


def seen_of(info: LockInfo) -> list[Seen]:
    return [Seen(info.name, holding.fence_token) for holding in info.holders]
