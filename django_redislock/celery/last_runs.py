"""The last runs of a schedule, in Redis, so that the next leader can continue."""

import json
from collections.abc import Sequence, Set
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
    """The last runs of the entries of one schedule, as this process knows them.

    Args:
        manager: The manager of the cache alias.
        name: The name of the leader's lock.
    """

    def __init__(self, manager: LockManager, name: str) -> None:
        self._manager = manager
        self._name = name
        self._runs: dict[str, Run] = {}
        self.unrecorded: set[str] = set()
        """The entries whose last run, or removal, is not in Redis."""

    def get(self, entry: str) -> Run | None:
        """Return the last run of an entry."""
        return self._runs.get(entry)

    def note(self, entry: str, last_run: Run) -> None:
        """Note the last run of an entry, to be recorded."""
        self._runs[entry] = last_run
        self.unrecorded.add(entry)

    def forget_others(self, entries: Set[str]) -> None:
        """Forget all entries but these."""
        removed = self._runs.keys() - entries
        for entry in removed:
            del self._runs[entry]
        self.unrecorded |= removed

    def begin(self, fence_token: int, *, has_another_led: bool) -> bool:
        """Begin a term with the last runs in Redis. Return False if a newer leader has begun.

        From now on, no earlier leader can record anything. Raises redis-py's `RedisError`.

        Args:
            fence_token: The fencing token of this leader.
            has_another_led: Whether another process has led since the last term of this one.
        """
        reply = self._call(fence_token, "1")
        if not reply:
            return False
        recorded = _parse(reply)
        if recorded:
            # If this process could not record a run in its last term, that run is newer.
            for entry in self.unrecorded & self._runs.keys():
                known = self._runs[entry]
                recorded[entry] = max(recorded.get(entry, known), known)
            self._runs = recorded
        else:  # Redis has lost them, or has never had any
            if has_another_led:
                self._runs = {}  # they are older than what that leader has sent
            self.unrecorded = set(self._runs)
        return True

    def record(self, fence_token: int) -> bool:
        """Record what is not in Redis, and return False if a newer leader has begun.

        Raises redis-py's `RedisError`.

        Args:
            fence_token: The fencing token of this leader.
        """
        changes: list[str] = []
        for entry in self.unrecorded:
            last_run = self._runs.get(entry)
            changes += [entry, last_run.dump() if last_run else ""]
        is_newest = bool(self._call(fence_token, "0", changes))
        self.unrecorded.clear()
        return is_newest

    def _call(self, fence_token: int, with_runs: str, changes: Sequence[str] = ()) -> bytes:
        server = servers[self._manager.alias]
        key = server.keys.last_runs(self._name)
        return run(server.client, _last_runs(key, (fence_token, with_runs, *changes)))


def _parse(reply: bytes) -> dict[str, Run]:
    [fields] = parse_replies([reply])
    runs = {
        field.removeprefix(RUN): parse_or_none(Run.parse, text)
        for field, text in pairs(fields).items()
        if field.startswith(RUN)
    }
    return {entry: last_run for entry, last_run in runs.items() if last_run}


def _last_runs(key: str, args: tuple[str | int, ...]) -> Flow[bytes]:
    reply: bytes = yield Call(LAST_RUNS, (key,), args, limit=REPLY_TIMEOUT_SECONDS)
    return reply
