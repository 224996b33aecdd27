"""Memory that a worker shares with its pool processes. In it, each of them shows what it locks.

A pool process that was killed cannot tell its worker which lock it held.

Celery's own reports of a dead pool process cannot replace this memory, and the regular look at it,
because a lock has to be free within two seconds of any death:

- They come too late. A process that was killed was reported after more than 3 seconds with Celery
  5.7 and Redis as its broker, and after 11 seconds with a transport that has no event loop.
- Not all of them are signals: `task_failure` is not sent if the message returns to its queue
  (`reject_on_worker_lost`).
- That of a hard time limit comes before the process is dead, so somebody has to look until it is.
- A report has the message, and not the lock, whose name would have to be made a second time.
"""

import ctypes
import mmap
import os
from typing import Any

from celery.signals import worker_init

SLOTS = 1024
"""How many locks can be shown at the same time."""


class Slot(ctypes.Structure):
    """A lock that a pool process holds, or is about to acquire."""

    pid: int

    _fields_ = (
        ("pid", ctypes.c_int),  # 0 if the slot is free
        ("timeout", ctypes.c_double),
        ("at_least_for", ctypes.c_double),
        ("alias", ctypes.c_char * 512),
        ("name", ctypes.c_char * 513),  # the maximum length and a zero
    )

    def leave(self) -> None:
        """Free the slot, unless another process took it, too."""
        if self.pid == os.getpid():
            self.pid = 0


slots: Any = ()

_worker_pid = -1


@worker_init.connect
def create(**_: Any) -> None:
    """Create the board, before the worker forks its pool processes."""
    global slots, _worker_pid
    memory = mmap.mmap(-1, SLOTS * ctypes.sizeof(Slot))
    slots, _worker_pid = (Slot * SLOTS).from_buffer(memory), os.getpid()


def show(alias: str, name: str, timeout: float, at_least_for: float) -> Slot:
    """Show a lock that a pool process is about to acquire.

    Returns:
        The slot of the lock, to `leave()` afterwards. It is a slot of no board outside pool
        processes, or if all slots are used.
    """
    if os.getppid() != _worker_pid:
        return Slot()
    pid = os.getpid()
    for offset in range(SLOTS):
        # Two processes that search at the same time begin with different slots.
        slot: Slot = slots[(pid + offset) % SLOTS]
        if not slot.pid:
            slot.timeout, slot.at_least_for = timeout, at_least_for
            slot.alias, slot.name = alias.encode()[:512], name.encode()
            slot.pid = pid  # last, because the worker may look at any time
            return slot
    return Slot()
