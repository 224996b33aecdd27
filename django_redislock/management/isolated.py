"""`IsolatedCommand`: a management command that runs once at a time, on all machines together."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import Parameter, Signature
from typing import Any, ClassVar, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from redis.exceptions import RedisError

from .. import validators
from ..exceptions import LockLost, LockNotAcquired
from ..health import unavailable_text
from ..lock_types.mutex import Mutex
from ..manager import LockManager, locks
from ..names import Template
from ..sentences import held_text
from ..sigterm import exit_on_sigterm
from ..text import error_text, parse_duration
from ..validators import Seconds
from .arguments import duration

OPTIONS = Signature([Parameter("options", Parameter.VAR_KEYWORD)])
"""The fields that a lock's name can have: the options of the command, by name."""


class IsolatedCommand(BaseCommand):
    """A base class for commands that must not run twice at the same time.

    If the command already runs somewhere, it prints who runs it to stderr, and ends successfully
    without running. ``--wait SECONDS`` waits for the other run to end.

    While the command runs, SIGTERM raises `SystemExit`, so that the lock is released. A handler of
    your own stays in place.

    If the lock is lost while the command runs, the command runs on, alongside another run. It then
    ends with a `CommandError`. Call `self.lock.assert_held()` between two steps to end it sooner.
    """

    lock_name: ClassVar[str | None] = None
    """The lock's name, in which ``{site}`` is the option ``site`` of the command. None means the
    name of the command."""

    lock_timeout: ClassVar[Seconds | None] = None
    """The lease in seconds. If the command is killed, the next run can begin after this time. None
    means ``REDISLOCK_TIMEOUT``."""

    lock_wait: ClassVar[Seconds] = 0
    """The default of ``--wait``, in seconds."""

    lock_max_hold: ClassVar[Seconds | None] = None
    """How long a run can hold the lock at most, in seconds. None means no limit."""

    lock_using: ClassVar[str | None] = None
    """The cache alias. None means ``REDISLOCK_CACHE``."""

    conflict_exit_code: ClassVar[int] = 0
    """The exit status if the command already runs. Another one than 0 is raised as a
    `CommandError` with this `returncode`."""

    lock: Mutex
    """The lock that the command holds while `handle()` runs."""

    _name = ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        self._name = subcommand
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        help_text = "If the command already runs, wait for its end, but at most this long."
        # Not "wait", because the command may have an argument of its own with this name.
        parser.add_argument(
            "--wait", dest="lock_wait", type=duration, metavar="SECONDS", help=help_text
        )
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        wait = _seconds(options.pop("lock_wait", None))
        manager = locks.using(self.lock_using)
        self.lock = self._new_lock(manager, options, self.lock_wait if wait is None else wait)
        with exit_on_sigterm(), _lost_as_command_error(self.lock), ExitStack() as held:
            try:
                held.enter_context(self.lock)
            except LockNotAcquired as error:
                self._refuse(manager, options.get("stderr"), error)
                return None
            except RedisError as error:
                text = unavailable_text(manager.alias, error)
                raise CommandError(f"Not run: {error_text(text)}") from error
            return super().execute(*args, **options)

    def _new_lock(self, manager: LockManager, options: dict[str, Any], wait: Seconds) -> Mutex:
        name = self._name or type(self).__module__.rpartition(".")[2]
        if self.lock_name is not None:
            name = Template(self.lock_name, OPTIONS, "lock_name").of_call((), options)
        lock = partial(manager.lock, name, timeout=self.lock_timeout, max_hold=self.lock_max_hold)
        return lock(blocking_timeout=wait) if wait else lock(blocking=False)

    def _refuse(self, manager: LockManager, stderr: TextIO | None, error: LockNotAcquired) -> None:
        """Say who runs the command, and end with the exit status for it."""
        text = f"Not run: {held_text(manager, self.lock.name)}"
        if self.conflict_exit_code:
            raise CommandError(text, returncode=self.conflict_exit_code) from error
        stream = OutputWrapper(stderr) if stderr else self.stderr
        stream.write(text, style_func=str)


def _seconds(wait: Any) -> Any:
    """Return the seconds of ``wait``, which `call_command` passes on as its caller gave it."""
    try:
        return validators.wait("wait", parse_duration(wait) if isinstance(wait, str) else wait)
    except (TypeError, ValueError) as error:
        raise CommandError(f"Error: argument --wait: {error}") from error


@contextmanager
def _lost_as_command_error(lock: Mutex) -> Iterator[None]:
    try:
        yield
    except LockLost as error:
        if error.lock_name != lock.name:
            raise
        raise CommandError(error_text(error)) from error
