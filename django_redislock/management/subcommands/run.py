"""`locks run`: run a command while a lock is held, and end it if the lock is lost."""

import math
import os
import signal
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from redis.exceptions import RedisError

from ...engine.timing import REPLY_TIMEOUT_SECONDS
from ...exceptions import LockError, LockLost
from ...health import unavailable_text
from ...lock_types import Mutex
from ...manager import LockManager
from ...sentences import held_text
from ...signals import lock_waiting
from ...text import error_text, printable, short_duration
from ...tokens import new_stored_token
from ..arguments import NOT_DONE, duration, exit_status, lease, name

HELP = "Run a command while a lock is held, and stop it if the lock is lost."

LOST = 75
"""The exit status if the lock was lost: EX_TEMPFAIL of sysexits.h, "try again later"."""

SIGNALLED = 128
"""Added to the number of a signal, the exit status of a process that the signal ended."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""The exit statuses of a shell for a command that cannot be executed."""

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

POLL_SECONDS = 0.1
"""Between two checks of the lock and the command. A signal is forwarded at once."""

MAX_COMMAND_CHARACTERS = 200
"""Of the command in the metadata, which have a limit."""


def add_arguments(parser: CommandParser) -> None:
    parser.usage = (
        "%(prog)s NAME [--timeout S] [--wait S | --skip] [--grace S] [--conflict-exit-code N]"
        " [--using A] -- COMMAND..."
    )
    parser.epilog = (
        "Exit status: of the command, 128 + n for signal n; 126 it cannot be executed, 127 not"
        f" found; {LOST} the lock was lost; 1 the lock was not acquired, or Redis is unreachable;"
        " 2 wrong usage."
    )
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    help_text = "The lease, renewed while the command runs; default: REDISLOCK_TIMEOUT."
    parser.add_argument("--timeout", type=lease, metavar="S", help=help_text)
    waiting = parser.add_mutually_exclusive_group()
    help_text = "Wait at most this long; default: no limit."
    waiting.add_argument("--wait", type=duration, metavar="S", help=help_text)
    waiting.add_argument("--skip", action="store_true", help="Don't wait.")
    help_text = "From SIGTERM to SIGKILL, if the lock is lost; default: %(default)g."
    parser.add_argument("--grace", type=duration, default=10.0, metavar="S", help=help_text)
    help_text = (
        "Exit status if the lock was not acquired; default: %(default)s. With 0 nothing is"
        " printed about it."
    )
    conflict = "--conflict-exit-code"
    parser.add_argument(conflict, type=exit_status, default=NOT_DONE, metavar="N", help=help_text)
    split_at_dashes(parser)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    locked = LockedCommand(command, manager, options)
    try:
        with signal_handler(locked.on_signal):
            status = locked.run()
    except (LockError, ImproperlyConfigured) as error:
        locked.fail(error)
    except RedisError as error:
        locked.fail(unavailable_text(manager.alias, error))
    if status:
        raise SystemExit(status)


class LockedCommand:
    """A command, and the lock that it runs under."""

    def __init__(
        self, command: BaseCommand, manager: LockManager, options: dict[str, Any]
    ) -> None:
        self.command, self.manager, self.options = command, manager, options
        self.name: str = options["name"]
        self.is_waiting = True
        # Unlike other queues, it can be used in a signal handler.
        self.signals: SimpleQueue[int] = SimpleQueue()
        metadata = {"command": printable(Path(options["argv"][0]).name[:MAX_COMMAND_CHARACTERS])}
        self.lock = manager.lock(self.name, timeout=options["timeout"], metadata=metadata)
        self.lock.reply_timeout = REPLY_TIMEOUT_SECONDS  # the client can have no limit
        self.lock.stored_token = new_stored_token()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_waiting:
            self.is_waiting = False
            raise SystemExit(SIGNALLED + number)
        self.signals.put(number)

    def run(self) -> int:
        """Run the command, and return the exit status."""
        if self.acquire():
            return self.release(self.run_command())
        self.say_conflict("Not run:")
        return int(self.options["conflict_exit_code"])

    def acquire(self) -> bool:
        wait = 0 if self.options["skip"] else self.options["wait"]
        lock_waiting.connect(self.on_waiting, sender=Mutex)
        try:
            is_acquired = self.lock.acquire(wait != 0, wait or None)
            self.is_waiting = False
            return is_acquired
        except BaseException:
            # An interrupted acquisition leaves its release to the renewal, which ends with this
            # process. The token is enough to release a waiter or a holder.
            with suppress(RedisError):
                self.manager.release_for(self.name, self.lock.stored_token)
            raise
        finally:
            lock_waiting.disconnect(self.on_waiting, sender=Mutex)

    def on_waiting(self, **about: object) -> None:
        self.say_conflict("Waiting for")

    def say_conflict(self, what: str) -> None:
        # A skipped run that counts as a success is silent, so that cron sends no mail about it.
        if self.options["conflict_exit_code"]:
            self.say(f"{what} {held_text(self.manager, self.name)}")

    def run_command(self) -> int:
        argv = self.options["argv"]
        environment = {
            **os.environ,
            "REDISLOCK_NAME": self.name,
            "REDISLOCK_FENCE_TOKEN": str(self.lock.fence_token),
        }
        try:
            child = subprocess.Popen(argv, env=environment)  # noqa: S603  the caller chose it
        except (OSError, ValueError) as error:
            self.say(f"locks run: {printable(argv[0])}: {error_text(error)}")
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            return NOT_FOUND if is_missing else NOT_EXECUTABLE
        try:
            return self.supervise(child)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()

    def supervise(self, child: "subprocess.Popen[bytes]") -> int:
        """Pass signals on until the command has ended, and end it if the lock is lost."""
        kill_at = math.inf
        while child.poll() is None:
            if self.lock.lost and kill_at == math.inf:
                grace = self.options["grace"]
                kill_at = time.monotonic() + grace
                child.terminate()
                self.say(
                    f"{printable(self.name)} was lost: the command got SIGTERM, and will be"
                    f" killed after {short_duration(grace)}"
                )
            if time.monotonic() >= kill_at:
                child.kill()
            with suppress(Empty):
                self.forward(child, self.signals.get(timeout=POLL_SECONDS))
        return child.returncode if child.returncode >= 0 else SIGNALLED - child.returncode

    def forward(self, child: "subprocess.Popen[bytes]", number: int) -> None:
        # A terminal sends Ctrl-C, and SIGHUP when it is closed, to the command as well.
        if number == signal.SIGTERM or not os.isatty(0):
            child.send_signal(number)

    def release(self, status: int) -> int:
        """Release the lock, and return the exit status."""
        if self.lock.lost:
            return LOST
        try:
            self.lock.release()
        except LockLost:
            self.say(f"{printable(self.name)} was lost when the command ended")
            return LOST
        except RedisError as error:
            self.say(
                f"{printable(self.name)} cannot be released, and is held until its lease"
                f" expires: {error_text(error)}"
            )
        return status

    def fail(self, reason: object) -> NoReturn:
        self.say(f"Not run: {error_text(reason)}")
        raise SystemExit(NOT_DONE) from None

    def say(self, text: str) -> None:
        with suppress(OSError):  # nobody reads stderr
            self.command.stderr.write(text, style_func=str)


@contextmanager
def signal_handler(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals of `FORWARDED`, in the main thread.

    Signals that this process ignores stay ignored, so that `nohup` works.
    """
    numbers = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, handle) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def split_at_dashes(parser: CommandParser) -> None:
    """Let the parser parse the arguments before the first ``--``. The rest is the command.

    The versions of argparse treat "--" differently, and the command can contain one, too.
    """
    parse = parser.parse_known_args

    def parse_known_args(args: list[str], namespace: Namespace) -> tuple[Namespace, list[str]]:
        end = args.index("--") if "--" in args else len(args)
        parsed, unknown = parse(args[:end], namespace)
        parsed.argv = args[end + 1 :]
        if not parsed.argv:
            parser.error("give the command after --, as in: NAME -- ls -l")
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
