"""The last runs of a schedule, in Redis, so that the next leader can continue."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from uuid import NAMESPACE_URL, uuid5

from django_redislock.backends import servers
from django_redislock.engine.operations import Call, Flow
from django_redislock.engine.parsing import pairs, parse_or_none, parse_replies
from django_redislock.engine.runners import run
from django_redislock.engine.timing import REPLY_TIMEOUT_SECONDS
from django_redislock.lua import LAST_RUNS
from django_redislock.manager import LockManager

RUN = "run:"
"""The prefix of a field with a last run."""


@dataclass(frozen=True, order=True, slots=True)
class Run:
    """When an entry of a schedule was last sent, or its first period began."""

    at: datetime
    """The time in UTC."""

    count: int
    """How often the entry was sent, as Celery counts it."""

    row: str = ""
    """The primary key of the entry in the database, or an empty string if it is not there. Two
    entries that have one name in turn differ in it."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a stored run. Raises `ValueError` if it is not one."""
        match json.loads(text):
            case [str(at), int(count), str(row)]:
                return cls(datetime.fromisoformat(at).astimezone(UTC), count, row)
        raise ValueError(f"{text[:80]!r} is not a last run")

    def dump(self) -> str:
        """Return the text to store."""
        return json.dumps([self.at.isoformat(), self.count, self.row])

    def next_task_id(self, schedule: str, entry: str) -> str:
        """Return the task id of the message that follows this run.

        It is the same for each leader that sends this message, so a message that was sent twice
        can be recognised.
        """
        return str(uuid5(NAMESPACE_URL, f"{schedule}/{entry}/{self.dump()}"))


class LastRuns:
    """The last runs of the entries of one schedule.

    Args:
        manager: The manager of the cache alias.
        name: The name of the leader's lock.
    """

    def __init__(self, manager: LockManager, name: str) -> None:
        self._manager = manager
        self._name = name

    def begin(self, fence_token: int) -> dict[str, Run] | None:
        """Begin a term, and return the last runs by entry.

        From now on, no earlier leader can record anything. The result is None if a newer leader
        has begun. Raises redis-py's `RedisError`.
        """
        reply = self._call(fence_token, "1")
        if not reply:
            return None
        [fields] = parse_replies([reply])
        texts = {
            field.removeprefix(RUN): text
            for field, text in pairs(fields).items()
            if field.startswith(RUN)
        }
        parsed = {entry: parse_or_none(Run.parse, text) for entry, text in texts.items()}
        return {entry: last_run for entry, last_run in parsed.items() if last_run}

    def record(self, fence_token: int, runs: Mapping[str, Run | None]) -> bool:
        """Record last runs, and return False if a newer leader has begun.

        Args:
            fence_token: The fencing token of this leader.
            runs: The last runs by entry. None removes an entry. Raises redis-py's `RedisError`.
        """
        changes: list[str] = []
        for entry, last_run in runs.items():
            changes += [entry, last_run.dump() if last_run else ""]
        return bool(self._call(fence_token, "0", changes))

    def _call(self, fence_token: int, with_runs: str, changes: Sequence[str] = ()) -> bytes:
        server = servers[self._manager.alias]
        key = server.keys.last_runs(self._name)
        return run(server.client, _last_runs(key, (fence_token, with_runs, *changes)))


def _last_runs(key: str, args: tuple[str | int, ...]) -> Flow[bytes]:
    reply: bytes = yield Call(LAST_RUNS, (key,), args, limit=REPLY_TIMEOUT_SECONDS)
    return reply
