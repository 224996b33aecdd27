"""Run a command for as long as a lock is held."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redis.exceptions import RedisError

from django_redislock.exceptions import LockError, LockLost
from django_redislock.lock_state import primary_holder
from django_redislock.lock_types import Mutex
from django_redislock.manager import LockManager
from django_redislock.signals import lock_waiting
from django_redislock.snapshots import LockInfo
from django_redislock.text import error_text, printable, short_duration
from django_redislock.validators import MAX_METADATA_CHARACTERS

from . import launching
from .catching import Catcher, Caught, Interrupted, TooLate, at_most, has_terminal, in_foreground
from .presenting import holding_text

LOST = 75
"""Exit status where the lock was lost: sysexits.h's EX_TEMPFAIL, "try again later". Few commands
use it, and it means the right thing to those who know it (mail servers, for one)."""

SIGNALLED = 128
"""Exit status of who is ended by a signal, less the signal's number, as a shell tells it."""

GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL."""

LOOK = 0.5
"""Seconds between two looks at the lock, though news of it or of the command come at once."""

LOOK_AT_REST = 0.05
"""The same while others of the command's group are to end: nobody tells of that."""

RELEASE = 5.0
"""Seconds for which a server that hangs is asked to take the lock back."""


class Say(Protocol):
    def __call__(self, text: str, *, calm: bool = False) -> None:
        """Tell whoever started it; what is `calm` is no trouble."""


class NotAcquired(Exception):
    """Another held it; says who."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run, and under which lock."""

    name: str
    argv: Sequence[str]
    timeout: float | None = None
    """The lease in seconds; None: ``REDISLOCK_TIMEOUT``."""

    wait: float | None = None
    """Seconds to wait for the lock at most; None: for ever."""

    grace: float = GRACE
    """Seconds from SIGTERM to SIGKILL where the command has to end."""


def run(manager: LockManager, job: Job, say: Say) -> int:
    """Run `job` and return its exit status, in the main thread.

    Raises `NotAcquired`, `LockError` if the name is held as a lock of another kind, and
    redis-py's errors if Redis is away before the command has begun.
    """
    with Catcher() as catcher:
        return Run(manager, job, say, catcher).to_its_end()


class Run:
    def __init__(self, manager: LockManager, job: Job, say: Say, catcher: Catcher) -> None:
        self._manager = manager
        self._job = job
        self._say = say
        self._catcher = catcher
        self._token = uuid.uuid4().hex
        self._lock = manager.lock(
            job.name,
            timeout=job.timeout,
            metadata={"command": shortened(job.argv[0])},
            on_lost=_wake_main_thread,
        )

    def to_its_end(self) -> int:
        try:
            with self._catcher.interrupting():
                self._acquire()
            self._refuse_what_came_since()
            status = self._guard()
        except Interrupted as stop:
            self._leave_nothing()
            return SIGNALLED + stop.number
        except BaseException:
            self._leave_nothing()
            raise
        return self._released(status)

    def _acquire(self) -> None:
        wait = self._job.wait
        lock_waiting.connect(self._say_for_whom_it_waits, sender=Mutex)
        try:
            acquired = self._lock.acquire(wait != 0, wait or None, token=self._token)
        finally:
            lock_waiting.disconnect(self._say_for_whom_it_waits, sender=Mutex)
        if not acquired:
            raise NotAcquired(self._holder())

    def _say_for_whom_it_waits(self, **told: object) -> None:
        self._say(f"Waiting for {self._holder()}", calm=True)

    def _holder(self) -> str:
        return told(self._job.name, self._manager.get(self._job.name))

    def _refuse_what_came_since(self) -> None:
        if caught := self._catcher.wait(0):
            raise Interrupted(caught.number)

    def _leave_nothing(self) -> None:
        # The lock leaves to its renewal what is interrupted, and that ends with this process.
        # To know the token is enough, whether it waited, was just let in, or neither.
        with suppress(RedisError, TooLate), at_most(RELEASE):
            if self._lock.token:
                with suppress(LockError):
                    self._lock.release()
            self._manager.release_for(self._job.name, self._token)

    def _guard(self) -> int:
        try:
            command = Command(self._job, self._lock, self._catcher)
        except OSError as error:
            self._say(f"{printable(self._job.argv[0])} can't be started: {error.strerror}")
            return launching.CANNOT_EXECUTE
        return Guard(command, self._lock, self._job, self._say, self._catcher).watch()

    def _released(self, status: int) -> int:
        """Give the lock back, and return what to exit with."""
        try:
            with at_most(RELEASE):
                self._lock.release()
        except LockLost:
            if status != LOST:
                self._say(f"{printable(self._job.name)} was lost when the command ended")
            return LOST
        except (RedisError, TooLate) as error:
            if status != LOST:
                self._say_not_released(error_text(error) or "Redis did not answer in time")
        return status

    def _say_not_released(self, why: str) -> None:
        name = printable(self._job.name)
        self._say(f"{name} can't be released, and stays taken until its lease ends: {why}")


class Command:
    """A process that runs the command, or a group of them."""

    def __init__(self, job: Job, lock: Mutex, catcher: Catcher) -> None:
        # At a terminal it stays where it is, for the terminal knows jobs by their groups.
        self.has_group = not has_terminal()
        self._popen = subprocess.Popen(  # noqa: S603  it is what the caller wants to run
            [*launcher(catcher), *job.argv],
            env=environment(job.name, lock.fence_token),
            close_fds=False,
            process_group=0 if self.has_group else None,
        )
        self.pid = self._popen.pid

    def status(self) -> int | None:
        """How it ended, negative for a signal; None if it has not."""
        return self._popen.poll()

    def send(self, number: int) -> None:
        """Send a signal, to all of its group if it has one, also when it has ended itself."""
        with suppress(ProcessLookupError, PermissionError):
            if self.has_group:
                os.killpg(self.pid, number)
            elif self.status() is None:
                os.kill(self.pid, number)

    def has_rest(self) -> bool:
        """Whether others of its group run on; it has ended itself, and was waited for."""
        if not self.has_group:
            return False
        with suppress(ChildProcessError):  # in a container this process may be their reaper
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        with suppress(PermissionError):
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return False
        return not only_zombies(self.pid)


def only_zombies(group: int) -> bool:
    """Whether all of a group have ended, though nobody has waited for them; False if unknown."""
    states = [state for state, _, its_group, *_ in _stats() if its_group == str(group)]
    return bool(states) and all(state in "ZX" for state in states)


def _stats() -> Iterator[list[str]]:
    """Of each process what ``/proc`` tells, from its state on; nothing where there is none."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield file.read_text(errors="replace").rpartition(")")[2].split()


class Guard:
    """Passes signals on to a command, and ends it if the lock is lost."""

    def __init__(
        self, command: Command, lock: Mutex, job: Job, say: Say, catcher: Catcher
    ) -> None:
        self._command = command
        self._lock = lock
        self._job = job
        self._say = say
        self._catcher = catcher
        self._passed_on: set[int] = set()
        self._lost = False
        self._is_ending = False
        self._kill_at = math.inf
        self._killed = False

    def watch(self) -> int:
        """Return its exit status once it has ended, and whoever must end with it."""
        try:
            self._look()
            while not self._is_over():
                self._take_signal()
                self._look()
        except BaseException:
            self._command.send(signal.SIGKILL)
            raise
        while self._catcher.wait(0):  # they were for the command
            pass
        return LOST if self._lost else exit_status(self._command.status() or 0)

    def _is_over(self) -> bool:
        if self._command.status() is None:
            return False
        return self._killed or not self._is_ending or not self._command.has_rest()

    def _take_signal(self) -> None:
        caught = self._catcher.wait(self._seconds())
        if caught is None or self._got_it_itself(caught):
            return
        self._command.send(caught.number)
        self._passed_on.add(caught.number)

    def _seconds(self) -> float:
        look = LOOK if self._command.status() is None else LOOK_AT_REST
        return max(0.0, min(look, self._kill_at - time.monotonic()))

    def _got_it_itself(self, caught: Caught) -> bool:
        """Whether the terminal sent it to the command as well."""
        if self._command.has_group:
            return False
        if caught.number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return False  # a terminal that is gone tells the leader of its session only
        if caught.by_kernel is None:
            return caught.number in (signal.SIGINT, signal.SIGQUIT) and in_foreground()
        return caught.by_kernel

    def _look(self) -> None:
        if not self._lost and self._lock.lost:
            self._lose()
        if not self._is_ending and (self._command.status() or 0) < 0:
            self._end_rest()
        if time.monotonic() >= self._kill_at:
            self._command.send(signal.SIGKILL)
            self._kill_at = math.inf
            self._killed = True

    def _lose(self) -> None:
        self._lost = True
        self._end()
        self._say(
            f"{printable(self._job.name)} was lost: the command was told to end, and will be "
            f"killed after {short_duration(self._job.grace)}"
        )

    def _end_rest(self) -> None:
        # Who was killed can't have ended its children, and they don't go on without it.
        number = -(self._command.status() or 0)
        self._end(tell=number not in self._passed_on)

    def _end(self, *, tell: bool = True) -> None:
        if not self._is_ending:
            self._kill_at = time.monotonic() + self._job.grace
        self._is_ending = True
        if tell:
            self._command.send(signal.SIGTERM)
            self._command.send(signal.SIGCONT)  # one that is stopped could not obey


def exit_status(returncode: int) -> int:
    """What a shell makes of a `returncode` of `subprocess`."""
    return SIGNALLED - returncode if returncode < 0 else returncode


def launcher(catcher: Catcher) -> list[str]:
    """What to put before a command, so that it begins with signals as they were here before,
    and does not outlive this process."""
    blocked = ",".join(str(int(number)) for number in catcher.blocked)
    script = str(Path(launching.__file__))
    return [sys.executable, "-I", "-S", script, str(os.getpid()), blocked]


def environment(name: str, fence_token: int | None) -> dict[bytes, bytes]:
    return {
        **os.environb,
        b"REDISLOCK_NAME": name.encode(),
        b"REDISLOCK_FENCE_TOKEN": str(fence_token).encode(),
    }


def shortened(text: str) -> str:
    """As much of `text` as fits into a lock's metadata; the rest of a command may be secret."""
    shown = printable(text)
    # A character takes 12 at most, and a key is around it.
    longest = MAX_METADATA_CHARACTERS // 12 - 10
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def told(name: str, info: LockInfo | None) -> str:
    """The lock, and who holds it."""
    held = primary_holder(info) if info else None
    if held is None:
        return f"{printable(name)} (just changing hands)"
    if not held.timeout:
        return f"{printable(name)} (released, but taken for {short_duration(held.ttl)} yet)"
    return holding_text(name, held)


def _wake_main_thread(lock: object) -> None:
    if main := threading.main_thread().ident:
        signal.pthread_kill(main, signal.SIGCHLD)
