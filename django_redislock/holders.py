"""Who is asking: this thread, asyncio task or greenlet, and what it says of itself."""

import asyncio
import hashlib
import json
import math
import os
import socket
import sys
import threading
import weakref
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from .identity import process_id
from .snapshots import Holder
from .validators import is_deep

LONGEST = 16_384
"""Characters of what a holder says of itself that are read: metadata take 4,096 at most."""


LONGEST_FIELD = 255
"""Characters of a host name, a thread's name or a task's id that Redis keeps."""

_DIGEST_CHARACTERS = 32

REMEMBERED = 512
"""Characters of what is remembered once it was read: few say more."""


class Anybody:
    """The owner where all threads or tasks that have a lock object count as one."""


Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread | Anybody"


def current_owner() -> "asyncio.Task[Any] | threading.Thread":
    """The asyncio task that runs, else the thread (under gevent: the greenlet)."""
    loop = running_loop()
    task = asyncio.current_task(loop) if loop else None
    return task or _current_thread()


class _Sentinel:
    """Is destroyed when its thread ends."""


_local = threading.local()
_sentinels: "weakref.WeakKeyDictionary[threading.Thread, weakref.ref[_Sentinel]]" = (
    weakref.WeakKeyDictionary()
)


def _current_thread() -> threading.Thread:
    thread = threading.current_thread()
    if not hasattr(_local, "sentinel"):
        sentinel = _Sentinel()
        _sentinels[thread] = weakref.ref(sentinel)
        _local.sentinel = sentinel
    return thread


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread or greenlet, if there is one."""
    loop = asyncio._get_running_loop()  # an error, as by the public way, would take a while
    return loop if loop and _runs_here(loop) else None


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    # asyncio knows one loop for each thread of the system, also where another greenlet runs it.
    return getattr(loop, "_thread_id", None) in (None, threading.get_ident())


def is_alive(owner: weakref.ref[Owner]) -> bool:
    """Whether that owner can still release what it holds."""
    found = owner()
    if found is None:
        return False
    if isinstance(found, Anybody):
        return True
    if isinstance(found, asyncio.Task):
        return not found.done()
    # is_alive() is always true, or raises, if `threading` did not start the thread.
    sentinel = _sentinels.get(found)
    if sentinel and sentinel() is None:
        return False
    try:
        return found.is_alive()
    except (RuntimeError, AssertionError):
        return False


Task: TypeAlias = tuple[str | None, str | None]
"""A Celery task's name and id."""


Renewal: TypeAlias = bool | Literal["later"]
"""Whether a holder renews its lease: yes, no, or only once its `at_least_for` has passed."""


class Told(NamedTuple):
    """What a holder says of itself."""

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
    """The JSON that Redis keeps beside a holding; `task` is the one that runs, unless given."""
    task_name, task_id = task or _celery_task()
    thread = _owner_name()[:LONGEST_FIELD]
    who = _who(host()[:LONGEST_FIELD], os.getpid(), process_id(), thread, task_name)
    # The cache of _who() would hold a new id each time.
    which = "null" if task_id is None else _as_json(recorded_id(task_id))
    what = _what(_as_json(metadata) if metadata else "{}", renewed, on_conflict)
    return f'{who},"task_id":{which}{what}'


def recorded_id(task_id: str) -> str:
    """Return what a holder record has as the id of the task.

    A sender chooses the id, so its length has no bound. A record keeps the beginning of an id of
    more than 255 characters, and its digest. That is 256 characters, so it equals no whole id.
    """
    if len(task_id) <= LONGEST_FIELD:
        return task_id
    digest = hashlib.sha256(task_id.encode(errors="surrogatepass")).hexdigest()
    beginning = task_id[: LONGEST_FIELD - _DIGEST_CHARACTERS]
    return f"{beginning}…{digest[:_DIGEST_CHARACTERS]}"


def whole_id(recorded: str | None) -> str | None:
    """Return the id of the task that a record names, or None if the record has not all of it."""
    return recorded if recorded and len(recorded) <= LONGEST_FIELD else None


@lru_cache(maxsize=64)
def _who(host: str, pid: int, process: str, thread: str, task_name: str | None) -> str:
    told = {
        "host": host,
        "pid": pid,
        "process": process,
        "thread": thread,
        "task_name": task_name,
    }
    return _as_json(told)[:-1]


@lru_cache(maxsize=64)
def _what(metadata: str, renewed: Renewal, on_conflict: str) -> str:
    about = _as_json({"renewed": renewed, "on_conflict": on_conflict})
    return f',"metadata":{metadata},{about[1:]}'


_as_json = json.JSONEncoder(separators=(",", ":")).encode


def read_info(text: str) -> Told:
    """What `info_text` told; whatever is not as that writes it is left out."""
    told = _told(text) if len(text) <= REMEMBERED else _told.__wrapped__(text)
    # Whoever asked may change what is its own, and not what is remembered.
    return told._replace(metadata=deepcopy(told.metadata) if told.metadata else {})


@lru_cache(maxsize=256)
def _told(text: str) -> Told:
    """The same, remembered: one process says it of all its locks."""
    told = _read(text)
    if not isinstance(told, dict):
        told = {}
    fit: dict[str, Any] = {
        name: told[name] for name, kind in _KINDS.items() if type(told.get(name)) is kind
    }
    metadata, on_conflict = told.get("metadata"), told.get("on_conflict")
    return Told(
        Holder(**fit),
        metadata if isinstance(metadata, dict) and not is_deep(metadata) else {},
        told.get("renewed") is True,
        on_conflict if isinstance(on_conflict, str) else "",
        told.get("renewed") == "later",
    )


def _read(text: str) -> Any:
    if len(text) > LONGEST:
        return None
    try:
        return _from_json(text)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(text)


_from_json = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode


_KINDS = {
    "host": str,
    "pid": int,
    "process": str,
    "thread": str,
    "task_name": str,
    "task_id": str,
}


def _owner_name() -> str:
    owner = current_owner()
    return owner.get_name() if isinstance(owner, asyncio.Task) else owner.name


@lru_cache(maxsize=1)
def host() -> str:
    """This machine's name."""
    return socket.gethostname()


def _celery_task() -> Task:
    state = sys.modules.get("celery._state")  # never the one to import Celery
    task = state.get_current_task() if state else None
    if task is None:
        return None, None
    task_id = task.request.id
    return task.name, None if task_id is None else str(task_id)  # a sender may choose a UUID
