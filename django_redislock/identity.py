"""The identity of a process, and of the thread, asyncio task or greenlet that holds a lock.

Host name and pid do not identify a process, because containers can share both. A task id does not
identify an execution, because a broker can deliver a message twice.
"""

import asyncio
import hashlib
import inspect
import itertools
import json
import math
import os
import secrets
import socket
import sys
import threading
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from .snapshots import Holder
from .validators import is_deep

PROCESS_ID_CHARACTERS = 16

MAX_PAYLOAD_CHARACTERS = 16_384
"""A longer holder payload is not parsed. Metadata take 4,096 characters at most."""

MAX_FIELD_CHARACTERS = 255
"""The length of a host name, thread name or task id in Redis."""

_DIGEST_CHARACTERS = 32

_HOST = socket.gethostname()[:MAX_FIELD_CHARACTERS]

# The process

_process = os.getpid(), secrets.token_hex(PROCESS_ID_CHARACTERS // 2)


def process_id() -> str:
    """Return the random id of this process.

    A forked child has the id that `child_id` derives from its parent's id and its own pid. So two
    processes share an id only if they have the same parent and, one after the other, the same pid.
    """
    global _process
    known_pid, known_id = _process
    pid = os.getpid()
    if pid != known_pid:  # also after a fork that Python did not see, such as one by uWSGI
        _process = pid, child_id(known_id, pid)
    return _process[1]


os.register_at_fork(after_in_child=process_id)  # before the child forks itself


def child_id(parent_id: str, pid: int) -> str:
    """Return the id of the child with that pid, so that its parent knows it after its death."""
    return hashlib.sha256(f"{parent_id} {pid}".encode()).hexdigest()[:PROCESS_ID_CHARACTERS]


# The owner of a hold within the process


class SharedOwner:
    """The owner if all threads and tasks that have a lock object count as one."""


Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread | SharedOwner"


def caller() -> "tuple[asyncio.Task[Any] | threading.Thread, bool]":
    """Return who calls, and whether an event loop runs in its thread or greenlet.

    The caller is the asyncio task that runs, or else the thread (under gevent: the greenlet).
    """
    try:
        task = asyncio.current_task()
        in_loop = threads_are_real() or bool(task and _is_on_stack(task))
    except RuntimeError:  # No event loop runs.
        task, in_loop = None, False
    if task and in_loop:
        return task, True
    thread = threading.current_thread()
    if not hasattr(_local, "sentinel"):
        _local.sentinel = _Sentinel()
        _sentinels[thread] = weakref.ref(_local.sentinel)
    return thread, in_loop


def current_owner() -> "asyncio.Task[Any] | threading.Thread":
    """Return the asyncio task that runs, or else the thread (under gevent: the greenlet)."""
    return caller()[0]


_numbers: "weakref.WeakKeyDictionary[Owner, int]" = weakref.WeakKeyDictionary()
_next_number = itertools.count(1)


def number_of(owner: Owner) -> int:
    """Return the number of an owner in this process, which no other one with its name has."""
    return _numbers.get(owner) or _numbers.setdefault(owner, next(_next_number))


def threads_are_real() -> bool:
    # gevent and eventlet replace this function by their own. Then the threads are greenlets, and
    # all greenlets of a system thread see its event loop and its asyncio task.
    return inspect.isbuiltin(threading.get_ident)


def _is_on_stack(task: "asyncio.Task[Any]") -> bool:
    task_frame = getattr(task.get_coro(), "cr_frame", None)
    frame = inspect.currentframe()
    while frame and frame is not task_frame:
        frame = frame.f_back
    return frame is not None


class _Sentinel:
    """An object that is destroyed when its thread ends."""


_local = threading.local()
_sentinels: "weakref.WeakKeyDictionary[threading.Thread, weakref.ref[_Sentinel]]" = (
    weakref.WeakKeyDictionary()
)


def is_alive(owner: weakref.ref[Owner]) -> bool:
    """Return whether an owner can still release what it holds."""
    found = owner()
    if found is None:
        return False
    if isinstance(found, SharedOwner):
        return True
    if isinstance(found, asyncio.Task):
        return not found.done()
    # If `threading` did not start the thread, is_alive() is always true, or raises.
    sentinel = _sentinels.get(found)
    if sentinel and sentinel() is None:
        return False
    try:
        return found.is_alive()
    except (RuntimeError, AssertionError):
        return False


# The holder payload: the JSON text about a holder that Redis stores next to its lease


Task: TypeAlias = tuple[str | None, str | None]
"""The name and the id of a task."""

running_task: ContextVar[Task | None] = ContextVar("django_redislock_running_task", default=None)
"""The task of Django's own task framework that runs."""

Renewal: TypeAlias = bool | Literal["later"]
"""Whether a holder renews its lease: yes, no, or only after its `at_least_for` has passed."""


class HolderPayload(NamedTuple):
    """The parsed holder payload."""

    holder: Holder
    metadata: Mapping[str, Any]
    renewed: bool
    on_conflict: str
    renews_later: bool


def payload_text(
    metadata: Mapping[str, Any],
    *,
    renewed: Renewal,
    on_conflict: str = "",
    task: Task | None = None,
    owner: "Owner | None" = None,
) -> str:
    """Return the payload of a thread, task or greenlet.

    Args:
        metadata: The metadata of the holder.
        renewed: Whether the holder renews its lease.
        on_conflict: The conflict policy of a single-instance task.
        task: The task. None means the task of Django or Celery that runs.
        owner: The holder. None, or a `SharedOwner`, means the caller.
    """
    if owner is None or isinstance(owner, SharedOwner):
        owner = current_owner()
    thread = owner.get_name() if isinstance(owner, asyncio.Task) else owner.name
    task = task or running_task.get()
    celery = sys.modules.get("celery")  # If the project has not imported Celery, no task runs.
    if task is None and celery and (running := celery.current_task):
        task = running.name, running.request.id
    task_name, task_id = task or (None, None)
    pid, process = _process
    if pid != os.getpid():
        process = process_id()
    # The sender can choose an id that is not a str, such as a UUID.
    task_json = "null" if task_id is None else _to_json(recorded_id(str(task_id)))
    return (
        f"{_holder_json(process, thread, number_of(owner), task_name)}"
        f',"task_id":{task_json},"metadata":{_to_json(dict(metadata)) if metadata else "{}"}'
        f",{_options_json(renewed, on_conflict)}"  # history.lua expects this order
    )


@lru_cache
def _holder_json(process: str, thread: str, number: int, task_name: str | None) -> str:
    """Return the beginning of a payload. All executions of a task by a thread share it."""
    facts = {
        "host": _HOST,
        "pid": os.getpid(),
        "process": process,
        "thread": thread[:MAX_FIELD_CHARACTERS],
        "number": number,
        "task_name": task_name and task_name[:MAX_FIELD_CHARACTERS],
    }
    return _to_json(facts)[:-1]


@lru_cache
def _options_json(renewed: Renewal, on_conflict: str) -> str:
    """Return the end of a payload."""
    return _to_json({"renewed": renewed, "on_conflict": on_conflict})[1:]


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def recorded_id(task_id: str) -> str:
    """Return a task id as it is recorded in Redis.

    A sender chooses the id, so its length has no bound. If an id has more than 255 characters, its
    beginning and its digest are recorded. They have 256 characters, so they equal no complete id.
    """
    if len(task_id) <= MAX_FIELD_CHARACTERS:
        return task_id
    digest = hashlib.sha256(task_id.encode(errors="surrogatepass")).hexdigest()
    beginning = task_id[: MAX_FIELD_CHARACTERS - _DIGEST_CHARACTERS]
    return f"{beginning}…{digest[:_DIGEST_CHARACTERS]}"


def complete_id(recorded: str | None) -> str | None:
    """Return a recorded task id, or None if only its beginning is recorded."""
    return recorded if recorded and len(recorded) <= MAX_FIELD_CHARACTERS else None


def parse_payload(text: str) -> HolderPayload:
    """Parse a holder payload. A part that `payload_text` would not have written is left out."""
    try:
        found = _from_json(text) if len(text) <= MAX_PAYLOAD_CHARACTERS else None
    except (ValueError, RecursionError):
        found = None
    record: dict[str, Any] = found if isinstance(found, dict) else {}
    fields = {
        name: record[name]
        for name, kind in _HOLDER_FIELDS.items()
        if type(record.get(name)) is kind
    }
    metadata, on_conflict = record.get("metadata"), record.get("on_conflict")
    return HolderPayload(
        Holder(**fields),
        metadata if metadata and isinstance(metadata, dict) and not is_deep(metadata) else {},
        record.get("renewed") is True,
        on_conflict if isinstance(on_conflict, str) else "",
        record.get("renewed") == "later",
    )


_HOLDER_FIELDS = {
    "host": str,
    "pid": int,
    "process": str,
    "thread": str,
    "number": int,
    "task_name": str,
    "task_id": str,
}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not valid JSON")
    return number


_from_json = json.JSONDecoder(parse_constant=_finite, parse_float=_finite).decode
