"""Memory that a worker shares with its pool processes. In it, each of them shows what it locks.

A pool process that was killed cannot tell its worker which lock it held.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery.signals import worker_init

SLOTS = 1024
"""How many locks can be shown at the same time."""

SLOT_BYTES = 1024
"""The size of a slot. The name of a lock has at most 512 bytes."""

NOT_SHOWN = -1


class ShownLock(NamedTuple):
    """A lock that a pool process holds, or was about to acquire."""

    slot: int
    pid: int
    timeout: float
    at_least_for: float
    alias: str
    name: str


_memory: mmap.mmap | None = None
"""A byte for each slot, which says whether it is in use, and then the slots."""

_worker_pid = 0


@worker_init.connect
def create(**_: Any) -> None:
    """Create the board, before the worker forks its pool processes."""
    global _memory, _worker_pid
    _memory, _worker_pid = mmap.mmap(-1, SLOTS * (1 + SLOT_BYTES)), os.getpid()


def show(alias: str, name: str, timeout: float, at_least_for: float) -> int:
    """Show a lock that a pool process is about to acquire.

    Returns:
        The slot of the lock. It is `NOT_SHOWN` outside pool processes, or if it does not fit.
    """
    if _memory is None or os.getppid() != _worker_pid:
        return NOT_SHOWN
    pid = os.getpid()
    content = f"{pid}\n{timeout}\n{at_least_for}\n{alias}\n{name}\n".encode()
    # Two processes that search at the same time begin with different slots.
    slot = _memory.find(b"\0", pid % SLOTS, SLOTS)
    if slot == -1:
        slot = _memory.find(b"\0", 0, SLOTS)
    if slot == -1 or len(content) > SLOT_BYTES:
        return NOT_SHOWN
    start = SLOTS + slot * SLOT_BYTES
    _memory[start : start + len(content)] = content
    _memory[slot] = 1
    return slot


def clear(slot: int, pid: int | None = None) -> None:
    """Empty a slot of a process, by default this one, unless another process has it now."""
    if _memory is None or slot == NOT_SHOWN:
        return
    start, owner = SLOTS + slot * SLOT_BYTES, f"{pid or os.getpid()}\n".encode()
    if _memory[start : start + len(owner)] == owner:
        _memory[slot] = 0


def shown() -> Iterator[ShownLock]:
    """Return all locks that are shown."""
    for slot, is_used in enumerate(_memory[:SLOTS] if _memory else b""):
        if is_used and _memory:
            start = SLOTS + slot * SLOT_BYTES
            content = _memory[start : start + SLOT_BYTES].decode(errors="replace")
            try:
                pid, timeout, at_least_for, alias, name, _ = content.split("\n", 5)
                lock = ShownLock(slot, int(pid), float(timeout), float(at_least_for), alias, name)
            except ValueError:  # a process writes it at this moment
                continue
            yield lock
