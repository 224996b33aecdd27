"""Run a command while a lock is held, and end it if the lock is lost."""

import math
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, Self

from redis.exceptions import RedisError

from django_redislock.exceptions import LockError, LockLost
from django_redislock.lock_state import primary_holder
from django_redislock.lock_types import Mutex
from django_redislock.manager import LockManager
from django_redislock.signals import lock_waiting
from django_redislock.text import error_text, printable, short_duration
from django_redislock.validators import MAX_METADATA_CHARACTERS

from . import launcher
from .formatting import holding_text

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

FORWARDED = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Say(Protocol):
    def __call__(self, text: str, *, is_routine: bool = False) -> None:
        """Print a message to stderr. A routine message does not report a problem."""


class NotAcquired(Exception):
    """The lock was not acquired. The text names the holder."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the wait for the lock."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class TooLate(KeyboardInterrupt):
    """The time limit of `at_most()` has passed. Code that handles errors does not catch it."""


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
        return Run(manager, job, say, signals).run()


class SignalQueue:
    """A context manager for the main thread that receives the signals of `FORWARDED`.

    Signals that this process ignores stay ignored, so that `nohup` works.
    """

    def __enter__(self) -> Self:
        self._received: deque[int] = deque()
        self._raises = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        numbers = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
        self._before: dict[int, Any] = {n: signal.signal(n, self._receive) for n in numbers}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)
        for number in self._received:
            signal.raise_signal(number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise `Interrupted` at the first signal. All later signals are stored."""
        self._raises = True
        try:
            if self._received:
                raise Interrupted(self._received.popleft())
            yield
        finally:
            self._raises = False

    def wait(self, seconds: float) -> int | None:
        """Return the next signal, or None after these seconds or when a child has changed."""
        if not self._received and select.select([self._reader], [], [], seconds)[0]:
            os.read(self._reader, 1 << 16)
        return self._received.popleft() if self._received else None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            raise Interrupted(number)
        self._received.append(number)


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
            on_lost=lambda lock: signal.raise_signal(signal.SIGCHLD),  # ends `wait()`
        )

    def run(self) -> int:
        try:
            with self._signals.interrupting():
                self._acquire()
            if number := self._signals.wait(0):
                raise Interrupted(number)
            status = self._run_command()
        except BaseException as error:
            # An interrupted acquisition leaves its release to the renewal, which ends with this
            # process. The token is enough to release a waiter or a holder.
            with suppress(RedisError, TooLate), at_most(RELEASE_TIMEOUT_SECONDS):
                if self._lock.token:
                    with suppress(LockError):
                        self._lock.release()
                self._manager.release_for(self._job.name, self._token)
            if isinstance(error, Interrupted):
                return SIGNALLED + error.number
            raise
        return self._release(status)

    def _acquire(self) -> None:
        wait = self._job.wait
        lock_waiting.connect(self._on_waiting, sender=Mutex)
        try:
            acquired = self._lock.acquire(wait != 0, wait or None, token=self._token)
        finally:
            lock_waiting.disconnect(self._on_waiting, sender=Mutex)
        if not acquired:
            raise NotAcquired(self._holder())

    def _on_waiting(self, **about: object) -> None:
        self._say(f"Waiting for {self._holder()}", is_routine=True)

    def _holder(self) -> str:
        """Return the lock's name and its holder, for the end of a sentence."""
        name = printable(self._job.name)
        info = self._manager.get(self._job.name)
        held = primary_holder(info) if info else None
        if held is None:
            return f"{name} (being handed over)"
        if not held.timeout:
            return f"{name} (released; in cooldown for {short_duration(held.ttl)})"
        return holding_text(self._job.name, held)

    def _run_command(self) -> int:
        try:
            command = Command(self._job, self._lock.fence_token)
        except OSError as error:
            self._say(f"{printable(self._job.argv[0])} cannot be started: {error.strerror}")
            return launcher.CANNOT_EXECUTE
        try:
            return self._watch(command)
        except BaseException:
            command.send(signal.SIGKILL)
            raise

    def _watch(self, command: "Command") -> int:
        """Forward signals until the command, and all that must end with it, have ended."""
        name, grace = printable(self._job.name), self._job.grace
        is_lost = is_ending = is_killed = False
        kill_at, forwarded = math.inf, set()
        while True:
            status = command.status()
            if not is_lost and self._lock.lost:
                is_lost = True
                kill_at = kill_at if is_ending else time.monotonic() + grace
                is_ending = True
                command.terminate()
                self._say(
                    f"{name} was lost: the command got SIGTERM, and will be killed after "
                    f"{short_duration(grace)}"
                )
            if not is_ending and status is not None and status < 0:
                # A process that a signal killed cannot have ended its children.
                is_ending, kill_at = True, time.monotonic() + grace
                if -status not in forwarded:
                    command.terminate()
            if time.monotonic() >= kill_at:
                command.send(signal.SIGKILL)
                kill_at, is_killed = math.inf, True
            if status is not None and (
                is_killed or not is_ending or not command.has_running_group()
            ):
                break
            pause = POLL_SECONDS if status is None else GROUP_POLL_SECONDS
            number = self._signals.wait(max(0.0, min(pause, kill_at - time.monotonic())))
            if number and not command.gets_from_terminal(number):
                command.send(number)
                forwarded.add(number)
        while self._signals.wait(0):  # they were for the command
            pass
        if is_lost:
            return LOST
        return SIGNALLED - status if status < 0 else status

    def _release(self, status: int) -> int:
        """Release the lock, and return the exit status."""
        name = printable(self._job.name)
        try:
            with at_most(RELEASE_TIMEOUT_SECONDS):
                self._lock.release()
        except LockLost:
            if status != LOST:
                self._say(f"{name} was lost when the command ended")
            return LOST
        except (RedisError, TooLate) as error:
            why = error_text(error) or "Redis did not answer in time"
            if status != LOST:
                self._say(f"{name} cannot be released, and is held until its lease expires: {why}")
        return status


class Command:
    """The process of the command, or its process group."""

    def __init__(self, job: Job, fence_token: int | None) -> None:
        # At a terminal, it stays in the process group of the job, for Ctrl-C and Ctrl-Z.
        self.has_group = foreground_group() is None
        self._popen = subprocess.Popen(  # noqa: S603  the caller chose the command
            [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *job.argv],
            env={
                **os.environb,
                b"REDISLOCK_NAME": job.name.encode(),
                b"REDISLOCK_FENCE_TOKEN": str(fence_token).encode(),
            },
            close_fds=False,
            process_group=0 if self.has_group else None,
        )

    def status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._popen.poll()

    def send(self, number: int) -> None:
        """Send a signal to the process, or to its group, also after the process has ended."""
        with suppress(ProcessLookupError, PermissionError):
            if self.has_group:
                os.killpg(self._popen.pid, number)
            elif self.status() is None:
                os.kill(self._popen.pid, number)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process cannot handle SIGTERM

    def gets_from_terminal(self, number: int) -> bool:
        """Return whether the terminal sends the signal to the command, too, such as Ctrl-C."""
        if self.has_group or number not in (signal.SIGINT, signal.SIGQUIT):
            return False
        return foreground_group() == os.getpgrp()

    def has_running_group(self) -> bool:
        """Return whether other processes of the group run. The command itself has ended."""
        if not self.has_group:
            return False
        with suppress(ChildProcessError):  # in a container, this process can be their parent
            while os.waitpid(-self._popen.pid, os.WNOHANG)[0]:
                pass
        with suppress(PermissionError):
            try:
                os.killpg(self._popen.pid, 0)
            except ProcessLookupError:
                return False
        return True


def foreground_group() -> int | None:
    """Return the process group that gets the signals of the terminal, or None without one."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return os.tcgetpgrp(terminal)
    finally:
        os.close(terminal)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooLate` inside the block, in the main thread, after these seconds."""

    def too_late(*_: object) -> None:
        raise TooLate

    before = signal.signal(signal.SIGALRM, too_late)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def shortened(text: str) -> str:
    """Return as much of `text` as fits into the metadata of a lock."""
    shown = printable(text)
    # JSON needs up to 12 characters for one, and a few for the key.
    longest = MAX_METADATA_CHARACTERS // 12 - 10
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
