"""Helpers of the cases in the table: the worker, and one task in one mode with its lock."""

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from celery.result import AsyncResult

from django_redislock import locks
from django_redislock.manager import LockManager
from django_redislock.tasks.single import queue_lock_token
from tests.celery_worker import FREE_WITHIN, Run, Worker, outcome
from tests.tools import wait_until

from .cases_app import MODES, TASKS, app

QUEUED: dict[str, set[str]] = {mode: {"queue lock"} for mode in MODES} | {"while_executing": set()}
"""The locks of a task in each mode while it is queued, and while it waits for its own retry."""

RUNNING: dict[str, set[str]] = {mode: {"lock"} for mode in MODES} | {"until_executing": set()}
"""The locks of a running task."""

REQUEUED = {mode: set[str]() for mode in MODES} | {"until_executed": {"queue lock"}}
"""The locks of a task whose message was returned to the broker."""

ENDS = ("] succeeded in ", "] retry: ", "] ignored", "] reject requeue=", "] raised ")
"""Texts in a worker's log at the end of a delivery."""


class CasesWorker(Worker):
    """A prefork worker with four pool processes for the tasks of the table."""

    def __init__(self, folder: Path, restarted_url: str) -> None:
        own = {
            "DJANGO_SETTINGS_MODULE": "tests.full.workers.cases_settings",
            "CASES_RESTARTED_URL": restarted_url,
        }
        super().__init__(folder, app="tests.full.workers.cases_app", environment=own)

    def consume(self, queue: str) -> None:
        """Consume messages from that queue too."""
        self._control("add_consumer", queue)

    def ignore(self, queue: str) -> None:
        """Stop consuming messages from that queue."""
        self._control("cancel_consumer", queue)

    def revoke(self, task_id: str) -> None:
        """Revoke a task, and wait until the worker knows."""
        self._control("revoke", task_id)

    def _control(self, command: str, target: str) -> None:
        send = getattr(app.control, command)
        assert send(target, destination=[self.name], reply=True, limit=1, timeout=10)

    def done_with(self, task_id: str, deliveries: int = 1) -> None:
        """Wait until `deliveries` deliveries of a message have ended, and return their ends."""

        def settled() -> bool:
            lines = self.logged(task_id)
            received = sum(" received" in line for line in lines)
            retried = sum(" retry: " in line for line in lines)
            done = sum(any(end in line for end in ENDS) for line in lines)
            return received == done == deliveries + retried

        wait_until(settled)


class Case:
    """One task in one mode."""

    def __init__(
        self, mode: str, worker: CasesWorker, kind: str = "plain", manager: LockManager = locks
    ) -> None:
        self.mode, self.worker, self.manager = mode, worker, manager
        self.task = TASKS[kind, mode]
        self.run = Run()
        self.queue = f"{worker.queue}-{uuid.uuid4().hex}"
        """A queue without a worker, until `CasesWorker.consume()` is called."""

    @property
    def name(self) -> str:
        return f"case:{self.run.id}"

    @property
    def id(self) -> str:
        return str(self.result.id)

    # Actions

    def send(self, how: str = "end", **options: Any) -> AsyncResult:
        queue = {"queue": self.worker.queue} | options
        self.result: AsyncResult = self.task.apply_async((self.run.id, how), **queue)
        return self.result

    def begun(self, times: int = 1) -> int:
        """Wait for `times` executions of the message, and return the process of the last one."""
        found = self.run.wait_for("begin", times)
        assert len(found) == times, found
        _, task_id, pid = found[-1].split()
        assert task_id == self.id
        return int(pid)

    def start(self, how: str = "end", **options: Any) -> int:
        """Send the task, check the locks of the running task, and return its process."""
        self.send(how, **options)
        pid = self.begun()
        assert self.held() == RUNNING[self.mode]
        return pid

    def go(self) -> None:
        self.run.go()

    def ends(self, *, times: int, timeout: float = 20) -> Any:
        """Wait for `times` executions, let the last one continue, and return the outcome."""
        self.begun(times)
        assert self.held() == RUNNING[self.mode]
        self.go()
        answer = outcome(self.result, timeout=timeout)
        self.freed()
        assert len(self.run.notes("begin")) == times
        return answer

    def share(self, other: "Case") -> None:
        """Use the lock of another case."""
        self.run.close()
        self.run = other.run

    def close(self) -> None:
        self.run.close()

    # Locks

    def held(self) -> set[str]:
        """Return which of "queue lock" and "lock" are held for this task."""
        return {*self._held(self.name), *self._held(f"{self.name}:queued")}

    def _held(self, name: str) -> Iterable[str]:
        info = self.manager.get(name)
        for holding in info.holders if info else ():
            assert holding.holder.task_id == self.id
            yield "queue lock" if holding.token == queue_lock_token(self.id) else "lock"

    def freed(self) -> None:
        """Wait until no lock is held."""
        self.kept(set())

    def tokens(self) -> set[str]:
        names = (self.name, f"{self.name}:queued")
        found = [info for name in names if (info := self.manager.get(name))]
        return {holding.token for info in found for holding in info.holders}

    def kept(self, wanted: set[str]) -> None:
        """Wait until exactly the wanted locks are held."""
        wait_until(lambda: self.held() == wanted, timeout=FREE_WITHIN)

    def state(self, state: str) -> None:
        wait_until(lambda: self.result.state == state)


def deliver_again(*results: AsyncResult) -> None:
    """Make the broker redeliver messages that are not acknowledged after a second.

    Workers do this for all messages every ten seconds, with their own `visibility_timeout`.
    """
    with app.connection_for_write() as connection:
        connection.transport_options = {"visibility_timeout": 1}
        with connection.channel() as channel, channel.conn_or_acquire() as client:
            ids = [result.id.encode() for result in results]
            sent = {
                tag: client.zscore(channel.unacked_index_key, tag)
                for tag, message in client.hgetall(channel.unacked_key).items()
                if any(task_id in message for task_id in ids)
            }
            assert len(sent) == len(results)
            wait_until(lambda: _are_restored(channel, client, sent), interval=0.1)


def _are_restored(channel: Any, client: Any, sent: dict[bytes, float]) -> bool:
    channel.qos.restore_visible(interval=1)
    # A message that a worker has received again has a later time.
    return all(client.zscore(channel.unacked_index_key, tag) != at for tag, at in sent.items())
