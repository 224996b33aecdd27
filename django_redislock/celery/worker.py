"""Releases the locks of pool processes that are dead, and the queue locks of revoked tasks and of
messages that the worker dropped.

A pool process that was killed, or exceeded its hard time limit, cannot release its locks. Its
parent, the worker, sees that it is dead, and reads on the board which lock it held. So the worker
releases the lock before the lease expires. If the whole worker is dead, the leases expire.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

from celery.app.task import Context
from celery.signals import task_received, task_rejected, task_unknown, worker_ready
from kombu.utils.functional import maybe_list
from redis.exceptions import RedisError

from django_redislock import clock
from django_redislock.identity import child_id, process_id
from django_redislock.lock_types.stored_task import Outbox
from django_redislock.manager import LockManager, locks
from django_redislock.tasks.conflict import holders_of
from django_redislock.tasks.single import queue_lock_token
from django_redislock.text import error_text, printable

from . import board
from .board import Slot
from .message import release_dropped, release_queue_lock, single_of
from .ordered import send_due

logger = logging.getLogger("django_redislock")

CHECK_INTERVAL_SECONDS = 0.25
"""Celery itself can need 5 seconds to see that a pool process is dead."""

LOOK_INTERVAL_SECONDS = 1.0
"""Between two looks for messages that nobody has sent. They have a thread of their own, because a
broker that is away can delay them."""

LATE_COMMAND_SECONDS = 2.0
"""How long after its death a command of a pool process can still reach Redis."""


@worker_ready.connect
def start_monitor(sender: Any, **_: Any) -> None:
    _monitor.app = sender.app
    _monitor.start()
    watch_undecodable(sender)


@task_received.connect
def received(request: Any, **_: Any) -> None:
    # A worker keeps a task until its ETA or until a pool process is free, and discards it only
    # then if it was revoked.
    if single_of(request.task):
        _monitor.received[request.id] = request


@task_unknown.connect
@task_rejected.connect
def dropped(message: Any, **_: Any) -> None:
    """Release the queue lock of a message that the worker dropped."""
    release_dropped(message.headers)


def watch_undecodable(consumer: Any) -> None:
    """Release the queue lock of a message whose body cannot be decompressed or decoded.

    Celery has no signal for it. It calls this method of its consumer. kombu, which decompresses
    the body, has kept the original method since the worker connected.
    """
    report = consumer.on_decode_error

    @wraps(report)
    def on_decode_error(message: Any, error: Exception) -> Any:
        result = report(message, error)
        dropped(message)
        return result

    consumer.on_decode_error = on_decode_error
    consumer.task_consumer.on_decode_error = on_decode_error


class Monitor:
    """Checks the pool processes and the scheduled tasks of this worker."""

    def __init__(self) -> None:
        self.received: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The requests that the worker has received, by the ids of their tasks."""
        self.dead: list[tuple[Slot, float]] = []
        """The locks of dead processes, and since when these are dead."""
        self.app: Any = None
        """The app of the worker."""
        self.known_revoked: dict[str, set[str]] = {}
        """The ids of revoked tasks that were looked for, by cache alias."""

        self._check_guard = threading.Lock()
        self._is_started = False

    def start(self) -> None:
        """Start the monitor, if it does not run yet."""
        if not self._is_started:
            self._is_started = True
            repeat(self.check, CHECK_INTERVAL_SECONDS)
            repeat(self.look_after_stored, LOOK_INTERVAL_SECONDS)
            # A cold shutdown ends as soon as the last pool process is dead.
            atexit.register(self._check_at_exit, os.getpid())

    def _check_at_exit(self, started_in: int) -> None:
        if os.getpid() == started_in:  # not in a pool process, whose siblings are not its children
            self.check()

    def check(self) -> None:
        with self._check_guard:
            for slot in board.slots:
                if slot.pid and _is_dead(slot.pid):
                    self.dead.append((Slot.from_buffer_copy(slot), clock.now()))
                    slot.pid = 0
            self.dead = [each for each in self.dead if not release_dead(*each)]
            self._release_revoked()

    def look_after_stored(self) -> None:
        """Send messages that wait in the queues of their locks, if nobody else has done it.

        Their senders may be dead. Messages that were revoked do not wait any longer: the worker
        that gets one ends it as it ends any revoked task, or returns it to its place in the queue
        if it does not know of the revocation.
        """
        managers = managers_with_stored(self.app)
        if not managers:
            return
        from celery.worker.state import revoked  # only a worker needs it

        ids = set(revoked)
        for manager in managers:
            with suppress(RedisError):  # the next look tries again
                for task_id in ids - self.known_revoked.get(manager.alias, set()):
                    Outbox(manager.alias).send_without_lock(queue_lock_token(task_id))
                self.known_revoked[manager.alias] = ids
            send_due(self.app, manager)

    def _release_revoked(self) -> None:
        # The worker can add requests at the same time.
        for request in [ref() for ref in self.received.valuerefs()]:
            if request is not None and is_revoked(request):
                self.received.pop(request.id, None)
                more = {"args": request.args, "kwargs": request.kwargs}
                release_queue_lock(request.task, Context({**request.request_dict, **more}))


def repeat(check: Callable[[], None], seconds: float) -> None:
    """Call a check of the worker again and again, in a thread."""

    def run() -> None:
        pause = threading.Event()
        while True:
            pause.wait(seconds)
            try:
                check()
            except Exception:
                logger.exception("Check of the worker failed, will retry")

    threading.Thread(target=run, name="redislock-watch", daemon=True).start()


def managers_with_stored(app: Any) -> list[LockManager]:
    """Return the managers of the cache aliases that can have stored messages of the app."""
    singles = filter(None, map(single_of, list(app.tasks.values())))
    aliases = {each.options.using for each in singles if each.options.policy.stores}
    return [locks.using(alias) for alias in aliases]


def is_revoked(request: Any) -> bool:
    """Return whether a request was revoked by its id or by a stamped header."""
    from celery.worker.state import revoked, revoked_stamps  # only a worker needs them

    if request.id in revoked:
        return True
    try:
        stamps = request.stamps
        return any(
            not set(maybe_list(stamps[header])).isdisjoint(maybe_list(revoked_stamps[header]))
            for header in revoked_stamps.keys() & stamps.keys()
        )
    except Exception:  # the headers are forged, and must not hide the other revoked requests
        return False


def release_dead(lock: Slot, since: float) -> bool:
    """Release the lock of a dead process, and return whether no further check is needed."""
    name, alias = lock.name.decode(errors="replace"), lock.alias.decode(errors="replace")
    age = clock.now() - since
    try:
        _release(alias, name, lock.pid, lock.at_least_for)
    except Exception as error:
        if age < CHECK_INTERVAL_SECONDS:  # once
            logger.warning(
                "Lock not yet released for dead process: name=%r pid=%s error=%s",
                *(name, lock.pid, error_text(error)),
                exc_info=not isinstance(error, RedisError),
            )
        return bool(age > max(lock.timeout, lock.at_least_for))  # it has expired
    return age > LATE_COMMAND_SECONDS


def _release(alias: str, name: str, pid: int, at_least_for: float) -> None:
    manager, process = locks.using(alias), child_id(process_id(), pid)
    for holding in holders_of(manager.get(name)):
        holder = holding.holder
        # A cooldown stays, and so does the queue lock of a message that the process sent.
        if (
            holder.process == process
            and holding.timeout
            and not holding.metadata.get("queued")
            and manager.release_for(
                name, holding.stored_token, at_least_for=at_least_for, killed=True
            )
        ):
            task = printable(f"{holder.task_name}[{holder.task_id}]")
            logger.warning(
                "Lock released for dead process: name=%r task=%s pid=%s", name, task, pid
            )


_monitor = Monitor()


def _is_dead(pid: int) -> bool:
    try:
        if hasattr(os, "waitid"):  # without WNOWAIT, the pool could not wait for it
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, pid, flags) is not None
        os.kill(pid, 0)  # macOS before Python 3.13: dead after the pool has waited for it
    except (ChildProcessError, ProcessLookupError, PermissionError):  # or it has another user
        return True
    return False
