"""Run a command while a lock is held, and end it if the lock is lost."""

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

from . import launcher
from .formatting import holding_text
from .forwarding import (
    Interrupted,
    ReceivedSignal,
    SignalQueue,
    TooLate,
    at_most,
    has_terminal,
    in_foreground,
)

LOST = 75
"""The exit status if the lock was lost: EX_TEMPFAIL of sysexits.h, "try again later"."""

SIGNALLED = 128
"""Added to the number of a signal, the exit status of a process that the signal ended."""

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""

POLL_SECONDS = 0.5
"""Between two checks of the lock. A signal ends the pause when the lock is lost or the command
ends."""

GROUP_POLL_SECONDS = 0.05
"""Between two checks of the process group, which sends no signal when it has ended."""

RELEASE_TIMEOUT_SECONDS = 5.0
"""For a release, if the server does not respond."""


class Say(Protocol):
    def __call__(self, text: str, *, is_routine: bool = False) -> None:
        """Print a message to stderr. A routine message does not report a problem."""


class NotAcquired(Exception):
    """The lock was not acquired. The text names the holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command, and the lock that it runs under."""

    name: str
    argv: Sequence[str]
    timeout: float | None = None
    """The lease in seconds; None: ``REDISLOCK_TIMEOUT``."""

    wait: float | None = None
    """The longest wait for the lock, in seconds. None: no limit."""

    grace: float = GRACE_SECONDS
    """The seconds from SIGTERM to SIGKILL if the command must end."""


def run(manager: LockManager, job: Job, say: Say) -> int:
    """Run a command in the main thread, and return the exit status.

    Raises:
        NotAcquired: Another holder has the lock.
        LockError: The name is in use as another kind of lock.
        RedisError: Redis was unreachable before the command started.
    """
    with SignalQueue() as signals:
        return Run(manager, job, say, signals).to_its_end()


class Run:
    def __init__(self, manager: LockManager, job: Job, say: Say, signals: SignalQueue) -> None:
        self._manager = manager
        self._job = job
        self._say = say
        self._signals = signals
        self._token = uuid.uuid4().hex
        self._lock = manager.lock(
            job.name,
            timeout=job.timeout,
            metadata={"command": shortened(job.argv[0])},
            on_lost=_wake_main_thread,
        )

    def to_its_end(self) -> int:
        try:
            with self._signals.interrupting():
                self._acquire()
            self._end_on_pending_signal()
            status = self._guard()
        except Interrupted as stop:
            self._release_everything()
            return SIGNALLED + stop.number
        except BaseException:
            self._release_everything()
            raise
        return self._released(status)

    def _acquire(self) -> None:
        wait = self._job.wait
        lock_waiting.connect(self._say_who_holds, sender=Mutex)
        try:
            acquired = self._lock.acquire(wait != 0, wait or None, token=self._token)
        finally:
            lock_waiting.disconnect(self._say_who_holds, sender=Mutex)
        if not acquired:
            raise NotAcquired(self._holder())

    def _say_who_holds(self, **about: object) -> None:
        self._say(f"Waiting for {self._holder()}", is_routine=True)

    def _holder(self) -> str:
        return holder_description(self._job.name, self._manager.get(self._job.name))

    def _end_on_pending_signal(self) -> None:
        if caught := self._signals.wait(0):
            raise Interrupted(caught.number)

    def _release_everything(self) -> None:
        # An interrupted acquisition leaves its release to the renewal, which ends with this
        # process. The token is enough to release a waiter or a holder.
        with suppress(RedisError, TooLate), at_most(RELEASE_TIMEOUT_SECONDS):
            if self._lock.token:
                with suppress(LockError):
                    self._lock.release()
            self._manager.release_for(self._job.name, self._token)

    def _guard(self) -> int:
        try:
            command = Command(self._job, self._lock, self._signals)
        except OSError as error:
            self._say(f"{printable(self._job.argv[0])} cannot be started: {error.strerror}")
            return launcher.CANNOT_EXECUTE
        return Guard(command, self._lock, self._job, self._say, self._signals).watch()

    def _released(self, status: int) -> int:
        """Release the lock, and return the exit status."""
        try:
            with at_most(RELEASE_TIMEOUT_SECONDS):
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
        self._say(f"{name} cannot be released, and is held until its lease expires: {why}")


class Command:
    """The process of the command, or its process group."""

    def __init__(self, job: Job, lock: Mutex, signals: SignalQueue) -> None:
        # At a terminal, it stays in the process group of the job, for Ctrl-C and Ctrl-Z.
        self.has_group = not has_terminal()
        self._popen = subprocess.Popen(  # noqa: S603  the caller chose the command
            [*launch_prefix(signals), *job.argv],
            env=environment(job.name, lock.fence_token),
            close_fds=False,
            process_group=0 if self.has_group else None,
        )
        self.pid = self._popen.pid

    def status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._popen.poll()

    def send(self, number: int) -> None:
        """Send a signal to the process, or to its group, also after the process has ended."""
        with suppress(ProcessLookupError, PermissionError):
            if self.has_group:
                os.killpg(self.pid, number)
            elif self.status() is None:
                os.kill(self.pid, number)

    def has_running_group(self) -> bool:
        """Return whether other processes of the group run. The command itself has ended."""
        if not self.has_group:
            return False
        with suppress(ChildProcessError):  # in a container, this process can be their parent
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        with suppress(PermissionError):
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return False
        return not only_zombies(self.pid)


def only_zombies(group: int) -> bool:
    """Return whether all processes of a group are zombies. False if unknown."""
    states = [state for state, _, its_group, *_ in _stats() if its_group == str(group)]
    return bool(states) and all(state in "ZX" for state in states)


def _stats() -> Iterator[list[str]]:
    """Yield the fields of ``/proc/PID/stat`` from the state on, if there is a ``/proc``."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield file.read_text(errors="replace").rpartition(")")[2].split()


class Guard:
    """Forwards signals to a command, and ends the command if the lock is lost."""

    def __init__(
        self, command: Command, lock: Mutex, job: Job, say: Say, signals: SignalQueue
    ) -> None:
        self._command = command
        self._lock = lock
        self._job = job
        self._say = say
        self._signals = signals
        self._forwarded: set[int] = set()
        self._lost = False
        self._is_ending = False
        self._kill_at = math.inf
        self._killed = False

    def watch(self) -> int:
        """Wait until the command, and all that must end with it, have ended. Return the status."""
        try:
            self._check()
            while not self._is_over():
                self._take_signal()
                self._check()
        except BaseException:
            self._command.send(signal.SIGKILL)
            raise
        while self._signals.wait(0):  # they were for the command
            pass
        return LOST if self._lost else exit_status(self._command.status() or 0)

    def _is_over(self) -> bool:
        if self._command.status() is None:
            return False
        return self._killed or not self._is_ending or not self._command.has_running_group()

    def _take_signal(self) -> None:
        caught = self._signals.wait(self._seconds())
        if caught is None or self._was_sent_to_command(caught):
            return
        self._command.send(caught.number)
        self._forwarded.add(caught.number)

    def _seconds(self) -> float:
        pause = POLL_SECONDS if self._command.status() is None else GROUP_POLL_SECONDS
        return max(0.0, min(pause, self._kill_at - time.monotonic()))

    def _was_sent_to_command(self, caught: ReceivedSignal) -> bool:
        """Return whether the terminal sent the signal to the command, too."""
        if self._command.has_group:
            return False
        if caught.number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return False  # a closed terminal sends it to the session leader only
        if caught.by_kernel is None:
            return caught.number in (signal.SIGINT, signal.SIGQUIT) and in_foreground()
        return caught.by_kernel

    def _check(self) -> None:
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
            f"{printable(self._job.name)} was lost: the command got SIGTERM, and will be "
            f"killed after {short_duration(self._job.grace)}"
        )

    def _end_rest(self) -> None:
        # A process that a signal killed cannot have ended its children.
        number = -(self._command.status() or 0)
        self._end(terminate=number not in self._forwarded)

    def _end(self, *, terminate: bool = True) -> None:
        if not self._is_ending:
            self._kill_at = time.monotonic() + self._job.grace
        self._is_ending = True
        if terminate:
            self._command.send(signal.SIGTERM)
            self._command.send(signal.SIGCONT)  # a stopped process cannot handle SIGTERM


def exit_status(returncode: int) -> int:
    """Return the exit status of a shell for a `returncode` of `subprocess`."""
    return SIGNALLED - returncode if returncode < 0 else returncode


def launch_prefix(signals: SignalQueue) -> list[str]:
    """Return the program that starts the command with the original signal handlers, and ties it
    to the life of this process."""
    blocked = ",".join(str(int(number)) for number in signals.blocked)
    script = str(Path(launcher.__file__))
    return [sys.executable, "-I", "-S", script, str(os.getpid()), blocked]


def environment(name: str, fence_token: int | None) -> dict[bytes, bytes]:
    return {
        **os.environb,
        b"REDISLOCK_NAME": name.encode(),
        b"REDISLOCK_FENCE_TOKEN": str(fence_token).encode(),
    }


def shortened(text: str) -> str:
    """Return as much of `text` as fits into the metadata of a lock."""
    shown = printable(text)
    # JSON needs up to 12 characters for one, and a few for the key.
    longest = MAX_METADATA_CHARACTERS // 12 - 10
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def holder_description(name: str, info: LockInfo | None) -> str:
    """Return the lock's name and its holder, for the end of a sentence."""
    held = primary_holder(info) if info else None
    if held is None:
        return f"{printable(name)} (being handed over)"
    if not held.timeout:
        return f"{printable(name)} (released; in cooldown for {short_duration(held.ttl)})"
    return holding_text(name, held)


def _wake_main_thread(lock: object) -> None:
    if main := threading.main_thread().ident:
        signal.pthread_kill(main, signal.SIGCHLD)
