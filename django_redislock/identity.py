"""The identity of a process, and of the thread, asyncio task or greenlet that holds a lock.

Host name and pid do not identify a process, because containers can share both. A task id does not
identify an execution, because a broker can deliver a message twice.
"""

import asyncio
import hashlib
import inspect
import json
import math
import os
import secrets
import socket
import sys
import threading
import weakref
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from .snapshots import Holder
from .validators import is_deep

PROCESS_ID_CHARACTERS = 16

MAX_PAYLOAD_CHARACTERS = 16_384
"""A longer holder payload is not parsed. Metadata take 4,096 characters at most."""

MAX_FIELD_CHARACTERS = 255
"""The length of a host name, thread name or task id in Redis."""

MAX_CACHED_CHARACTERS = 512
"""A longer holder payload is not cached."""

_DIGEST_CHARACTERS = 32


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
    if pid != known_pid:  # a fork that Python did not see, such as one by uWSGI
        _process = pid, child_id(known_id, pid)
    return _process[1]


def child_id(parent_id: str, pid: int) -> str:
    """Return the id of the child with that pid, so that its parent knows it after its death."""
    return hashlib.sha256(f"{parent_id} {pid}".encode()).hexdigest()[:PROCESS_ID_CHARACTERS]


@lru_cache(maxsize=1)
def host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


# The owner of a hold within the process


class SharedOwner:
    """The owner if all threads and tasks that have a lock object count as one."""


Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread | SharedOwner"


def current_owner() -> "asyncio.Task[Any] | threading.Thread":
    """Return the asyncio task that runs, or else the thread (under gevent: the greenlet)."""
    loop = running_loop()
    task = asyncio.current_task(loop) if loop else None
    if task:
        return task
    thread = threading.current_thread()
    if not hasattr(_local, "sentinel"):
        _local.sentinel = _Sentinel()
        _sentinels[thread] = weakref.ref(_local.sentinel)
    return thread


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread or greenlet, if there is one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    if inspect.isbuiltin(threading.get_ident):
        return loop
    # gevent has replaced threads by greenlets. All greenlets of a system thread see its loop.
    task = asyncio.current_task(loop)
    return loop if task and _is_on_stack(task.get_coro()) else None


def _is_on_stack(coroutine: Any) -> bool:
    own_frame = getattr(coroutine, "cr_frame", None)
    frame = inspect.currentframe()
    while frame and frame is not own_frame:
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
"""The name and the id of a Celery task."""

Renewal: TypeAlias = bool | Literal["later"]
"""Whether a holder renews its lease: yes, no, or only after its `at_least_for` has passed."""


class HolderPayload(NamedTuple):
    """The parsed holder payload."""

    holder: Holder
    metadata: Mapping[str, Any]
    renewed: bool
    on_conflict: str
    renews_later: bool


def info_text(
    metadata: Mapping[str, Any],
    *,
    renewed: Renewal,
    on_conflict: str = "",
    task: Task | None = None,
) -> str:
    """Return the payload of the calling thread, task or greenlet.

    Args:
        metadata: The metadata of the holder.
        renewed: Whether the holder renews its lease.
        on_conflict: The conflict policy of a single-instance task.
        task: The Celery task. None means the task that runs.
    """
    owner = current_owner()
    thread = owner.get_name() if isinstance(owner, asyncio.Task) else owner.name
    task_name, task_id = task or _celery_task()
    identity = _identity_json(os.getpid(), thread[:MAX_FIELD_CHARACTERS], task_name)
    # Each task id is new, so it would fill the cache of _identity_json().
    task_json = "null" if task_id is None else _to_json(recorded_id(task_id))
    options = _options_json(_to_json(metadata) if metadata else "{}", renewed, on_conflict)
    return f'{identity},"task_id":{task_json}{options}'


@lru_cache(maxsize=64)
def _identity_json(pid: int, thread: str, task_name: str | None) -> str:
    identity = {
        "host": host()[:MAX_FIELD_CHARACTERS],
        "pid": pid,
        "process": process_id(),
        "thread": thread,
        "task_name": task_name,
    }
    return _to_json(identity)[:-1]


@lru_cache(maxsize=64)
def _options_json(metadata: str, renewed: Renewal, on_conflict: str) -> str:
    options = _to_json({"renewed": renewed, "on_conflict": on_conflict})
    return f',"metadata":{metadata},{options[1:]}'


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def _celery_task() -> Task:
    celery = sys.modules.get("celery")  # If the project has not imported Celery, no task runs.
    task = celery.current_task if celery else None
    if not task:
        return None, None
    task_id = task.request.id
    return task.name, None if task_id is None else str(task_id)  # The sender can choose a UUID.


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


def read_info(text: str) -> HolderPayload:
    """Parse a holder payload. A part that `info_text` would not have written is left out."""
    cached = len(text) <= MAX_CACHED_CHARACTERS
    payload = _parse(text) if cached else _parse.__wrapped__(text)
    # A caller can change its metadata without changing the cache.
    return payload._replace(metadata=deepcopy(payload.metadata) if payload.metadata else {})


@lru_cache(maxsize=256)
def _parse(text: str) -> HolderPayload:
    try:
        found = _from_json(text) if len(text) <= MAX_PAYLOAD_CHARACTERS else None
    except (ValueError, RecursionError):
        found = None
    record: dict[str, Any] = found if isinstance(found, dict) else {}
    fields: dict[str, Any] = {
        name: record[name]
        for name, kind in _HOLDER_FIELDS.items()
        if type(record.get(name)) is kind
    }
    metadata, on_conflict = record.get("metadata"), record.get("on_conflict")
    return HolderPayload(
        Holder(**fields),
        metadata if isinstance(metadata, dict) and not is_deep(metadata) else {},
        record.get("renewed") is True,
        on_conflict if isinstance(on_conflict, str) else "",
        record.get("renewed") == "later",
    )


_HOLDER_FIELDS = {
    "host": str,
    "pid": int,
    "process": str,
    "thread": str,
    "task_name": str,
    "task_id": str,
}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


_from_json = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode


def _after_fork() -> None:
    _identity_json.cache_clear()
    process_id()


os.register_at_fork(after_in_child=_after_fork)
