"""`locks run`: run a command while a lock is held, and end it if the lock is lost."""

import signal
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from ...engine.store import REPLY_TIMEOUT_SECONDS
from ...exceptions import LockError, LockLost
from ...lock_state import primary_holder
from ...lock_types import Mutex
from ...manager import LockManager
from ...signals import lock_waiting
from ...text import error_text, printable, short_duration
from ..arguments import NOT_DONE, USAGE, duration, exit_status, lease, name
from ..child_process import ChildProcess, Interrupted, SignalQueue
from ..formatting import hold_text
from ..output import plain, stop

HELP = "Run a command while a lock is held, and stop it if the lock is lost."

USAGE_LINE = (
    "%(prog)s NAME [--timeout S] [--wait S | --skip] [--grace S] [--conflict-exit-code N]"
    " [--using A] -- COMMAND..."
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

MAX_COMMAND_CHARACTERS = 200
"""Of the command in the metadata, which have a limit."""


def add_arguments(parser: CommandParser) -> None:
    parser.usage = USAGE_LINE
    parser.epilog = (
        "Exit status: of the command, 128 + n for signal n; 126 it cannot be executed, 127 not"
        f" found; {LOST} the lock was lost; 1 the lock was not acquired, or Redis is unreachable;"
        " 2 wrong usage."
    )
    parser.add_argument("name", type=name, metavar="NAME", help="The lock's name.")
    parser.add_argument(
        "--timeout",
        type=lease,
        metavar="S",
        help="The lease, renewed while the command runs; default: REDISLOCK_TIMEOUT.",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--wait", type=duration, metavar="S", help="Wait at most this long; default: no limit."
    )
    waiting.add_argument("--skip", action="store_true", help="Don't wait.")
    parser.add_argument(
        "--grace",
        type=duration,
        default=GRACE_SECONDS,
        metavar="S",
        help=f"From SIGTERM to SIGKILL, if the lock is lost; default: {GRACE_SECONDS:g}.",
    )
    parser.add_argument(
        "--conflict-exit-code",
        type=exit_status,
        default=NOT_DONE,
        metavar="N",
        help="Exit status if the lock was not acquired; default: 1. With 0 nothing is printed"
        " about it, except with -v 2.",
    )
    parser.set_defaults(argv=())
    split_at_dashes(parser)


def run(command: BaseCommand, manager: LockManager, options: dict[str, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise CommandError("locks run needs the main thread, because it forwards signals.")
    if not options["argv"] or not options["argv"][0]:
        fail(command, "give the command after --, as in: NAME -- ls -l", USAGE)
    try:
        with SignalQueue() as signals:
            status = LockedCommand(command, manager, options, signals).run()
    except LockError as error:
        fail(command, error)
    except RedisError as error:
        fail(command, f"the locks on {manager.alias!r} can't be reached: {error}")
    if status:
        raise SystemExit(status)


def fail(command: BaseCommand, reason: object, status: int = NOT_DONE) -> NoReturn:
    stop(command, f"Not run: {error_text(reason)}", status, command.style.ERROR)


class LockedCommand:
    """A command, and the lock that it runs under."""

    def __init__(
        self,
        command: BaseCommand,
        manager: LockManager,
        options: dict[str, Any],
        signals: SignalQueue,
    ) -> None:
        self.command, self.manager, self.options, self.signals = command, manager, options, signals
        self.name: str = options["name"]
        self.token = uuid.uuid4().hex
        # A skipped run that counts as a success is silent, so that cron sends no mail about it.
        self.is_quiet = options["conflict_exit_code"] == 0 and options["verbosity"] < 2
        program = printable(options["argv"][0])[:MAX_COMMAND_CHARACTERS]
        self.lock = manager.lock(
            self.name,
            timeout=options["timeout"],
            metadata={"command": program},
            on_lost=lambda lock: signals.wake(),
        )
        self.lock.reply_timeout = REPLY_TIMEOUT_SECONDS  # the client can have no limit

    def run(self) -> int:
        """Run the command, and return the exit status.

        Raises:
            LockError: The name is in use as another kind of lock.
            RedisError: Redis was unreachable before the command started.
        """
        try:
            is_acquired = self.acquire()
            self.signals.interrupts = False
            if is_acquired:
                status = self.run_command()
        except BaseException as error:
            # An interrupted acquisition leaves its release to the renewal, which ends with this
            # process. The token is enough to release a waiter or a holder.
            with suppress(RedisError):
                if self.lock.token:
                    with suppress(LockError):
                        self.lock.release()
                self.manager.release_for(self.name, self.token)
            if isinstance(error, Interrupted):
                return SIGNALLED + error.number
            raise
        if is_acquired:
            return self.release(status)
        status = int(self.options["conflict_exit_code"])
        if not self.is_quiet:
            fail(self.command, self.holder_text(), status)
        return status

    def acquire(self) -> bool:
        def on_waiting(**about: object) -> None:
            self.say(f"Waiting for {self.holder_text()}")

        if not self.is_quiet:
            lock_waiting.connect(on_waiting, sender=Mutex)
        try:
            wait = 0 if self.options["skip"] else self.options["wait"]
            return self.lock.acquire(wait != 0, wait or None, token=self.token)
        finally:
            lock_waiting.disconnect(on_waiting, sender=Mutex)

    def holder_text(self) -> str:
        """Return the lock's name and its holder, for the end of a sentence."""
        info = self.manager.get(self.name)
        held = primary_holder(info) if info else None
        return (
            hold_text(self.name, held) if held else f"{printable(self.name)} (being handed over)"
        )

    def run_command(self) -> int:
        fence_token = str(self.lock.fence_token)
        environment = {"REDISLOCK_NAME": self.name, "REDISLOCK_FENCE_TOKEN": fence_token}
        child = ChildProcess(self.options["argv"], environment)
        try:
            return self.supervise(child)
        except BaseException:
            child.send(signal.SIGKILL)
            raise

    def supervise(self, child: ChildProcess) -> int:
        """Forward signals until the command, and all that must end with it, have ended."""
        forwarded: set[int] = set()

        def forward_next(seconds: float) -> None:
            if number := self.signals.wait(seconds):
                child.forward(number)
                forwarded.add(number)

        while (status := child.poll()) is None and not self.lock.lost:
            forward_next(POLL_SECONDS)
        is_lost, grace = self.lock.lost, self.options["grace"]
        if not is_lost and status is not None and status >= 0:
            return status
        # A process that a signal killed cannot have ended its children.
        if status is None or -status not in forwarded:
            child.terminate()
        kill_at = time.monotonic() + grace
        if is_lost:
            self.say(
                f"{printable(self.name)} was lost: the command got SIGTERM, and will be killed "
                f"after {short_duration(grace)}"
            )
        while child.is_running() and time.monotonic() < kill_at:
            forward_next(GROUP_POLL_SECONDS)
        if child.is_running():
            child.send(signal.SIGKILL)
        return LOST if is_lost else SIGNALLED - child.wait()

    def release(self, status: int) -> int:
        """Release the lock, and return the exit status."""
        try:
            self.lock.release()
        except LockLost:
            if status != LOST:
                self.say(f"{printable(self.name)} was lost when the command ended")
            return LOST
        except RedisError as error:
            why = error_text(error) or type(error).__name__
            self.say(
                f"{printable(self.name)} cannot be released, and is held until its lease"
                f" expires: {why}"
            )
        return status

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # stderr is closed
            self.command.stderr.write(text, style_func=plain)


def split_at_dashes(parser: CommandParser) -> None:
    """Let the parser parse the arguments before the first ``--``. The rest is the command.

    The versions of argparse treat "--" differently, and the command can contain one, too.
    """
    parse = parser.parse_known_args

    def parse_known_args(
        args: Sequence[str], namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        given = list(args)
        end = given.index("--") if "--" in given else len(given)
        parsed, unknown = parse(given[:end], namespace)
        if unknown:
            parser.error(f"not known: {' '.join(unknown)} (the command goes after --)")
        parsed.argv = given[end + 1 :]
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
