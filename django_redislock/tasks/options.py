"""The options of `single_instance`, checked when the module is imported."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from django.conf import settings

from django_redislock import validators
from django_redislock.conf import conf
from django_redislock.names import short_repr
from django_redislock.redaction import without_secrets
from django_redislock.validators import Seconds

QUEUE_TIMEOUT_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Locking:
    """When a mode holds locks."""

    when_sent: bool
    """Whether a queue lock is taken when the task is sent."""

    while_running: bool
    """Whether a lock is held while the task runs."""

    separate: bool = False
    """Whether these are two locks, so that one task can be queued while another runs."""


MODES = {
    "while_executing": Locking(when_sent=False, while_running=True),
    "until_executing": Locking(when_sent=True, while_running=False),
    "until_executed": Locking(when_sent=True, while_running=True),
    "until_and_while_executing": Locking(when_sent=True, while_running=True, separate=True),
}

QUEUE_LOCK_SUFFIX = ":queued"
"""The end of the name of a separate queue lock."""

POLICIES = ("skip", "raise", "retry", "wait", "replace")

WHEN_SENT = ("skip", "raise", "replace")
"""The policies for a conflict of queue locks."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `single_instance`, which documents them."""

    unique_on: Collection[str] | None
    key: str | Callable[..., str] | None
    mode: str
    on_conflict: str
    timeout: Seconds | None
    blocking_timeout: Seconds | None
    countdown: Seconds | None
    max_retries: int | None
    limit: int | Callable[..., int] | None
    at_least_for: Seconds
    max_hold: Seconds | None
    queue_timeout: Seconds | None
    hold_on_retry: bool | None
    on_lost: Callable[..., Any] | Literal["abort"] | None
    using: str | None

    locking: Locking = field(init=False)

    holds_on_retry: bool = field(init=False)
    """Whether the lock is kept for the task's own retry."""

    may_have_queue_lock: bool = field(init=False)
    """Whether a task can have a queue lock, from when it was sent or from its last retry."""

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, tuple(MODES))
        locking, keeps = MODES[self.mode], self.hold_on_retry
        if keeps is None:
            keeps = locking.when_sent and locking.while_running and not locking.separate
        object.__setattr__(self, "locking", locking)
        object.__setattr__(self, "holds_on_retry", keeps)
        object.__setattr__(self, "may_have_queue_lock", locking.when_sent or keeps)
        self._check_conflict()
        self._check_kept()
        self._check_name()
        if self.timeout is not None:
            validators.lease("timeout", self.timeout)
        validators.wait("blocking_timeout", self.blocking_timeout)
        validators.wait("countdown", self.countdown)
        validators.at_least("at_least_for", self.at_least_for)
        _check_max_hold(self.max_hold, self.timeout, self.at_least_for)
        if callable(self.limit):
            validators.callback("limit", self.limit)
        elif self.limit is not None:
            validators.count("limit", self.limit)
        if self.max_retries is not None:
            validators.count("max_retries", self.max_retries, least=0)
        _check_using(self.using)
        validators.on_lost("on_lost", self.on_lost)

    def _check_conflict(self) -> None:
        _check_choice("on_conflict", self.on_conflict, POLICIES)
        if self.on_conflict == "replace" and not self.locking.when_sent:
            raise ValueError(
                f"on_conflict={self.on_conflict!r} requires a mode that locks when the task is"
                f" sent ({', '.join(repr(mode) for mode in MODES if MODES[mode].when_sent)}), not"
                f" mode={self.mode!r}"
            )
        if self.locking.when_sent and self.on_conflict not in WHEN_SENT:
            raise ValueError(
                f"on_conflict={self.on_conflict!r} requires mode='while_executing'. With"
                f" mode={self.mode!r} use one of {', '.join(map(repr, WHEN_SENT))}."
            )
        self._check_belongs("blocking_timeout", "wait")
        if not self.locking.separate:
            self._check_belongs("countdown", "retry")
        self._check_belongs("max_retries", "retry")

    def _check_kept(self) -> None:
        if self.queue_timeout is not None:
            validators.lease("queue_timeout", self.queue_timeout)
        if self.hold_on_retry is not None:
            validators.flag("hold_on_retry", self.hold_on_retry)
        if self.hold_on_retry and not self.locking.while_running:
            raise ValueError(
                f"hold_on_retry=True has no effect with mode={self.mode!r}, which holds no lock"
                " while the task runs"
            )
        if self.queue_timeout is not None and not self.may_have_queue_lock:
            raise ValueError(
                f"queue_timeout={self.queue_timeout!r} has no effect with mode={self.mode!r}. It"
                " requires hold_on_retry=True or a mode that locks when the task is sent."
            )

    @property
    def max_queue_seconds(self) -> float:
        if self.queue_timeout is None:
            return QUEUE_TIMEOUT_SECONDS
        return validators.lease("queue_timeout", self.queue_timeout)

    def _check_belongs(self, option: str, policy: str) -> None:
        value = getattr(self, option)
        if value is not None and self.on_conflict != policy:
            raise ValueError(
                f"{option}={value!r} requires on_conflict={policy!r},"
                f" not on_conflict={self.on_conflict!r}"
            )

    def _check_name(self) -> None:
        if self.unique_on is not None and self.key is not None:
            raise ValueError(
                f"unique_on={short_repr(self.unique_on)} and key={short_repr(self.key)}"
                " cannot be combined: use one of them"
            )
        if self.key is not None and not (isinstance(self.key, str) or callable(self.key)):
            raise TypeError(
                f"key must be a template (str) or a callable, not {short_repr(self.key)}"
                f" ({type(self.key).__name__})"
            )
        is_reserved = isinstance(self.key, str) and self.key.endswith(QUEUE_LOCK_SUFFIX)
        if self.locking.separate and is_reserved:
            raise ValueError(
                f"key={short_repr(self.key)} must not end with {QUEUE_LOCK_SUFFIX!r}, which"
                f" mode={self.mode!r} reserves for its queue locks"
            )
        if self.unique_on is not None and self.unique_on != "*":
            _check_names("unique_on", self.unique_on)


def _check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(
            f"{option}={short_repr(value)} is not one of {', '.join(map(repr, choices))}"
        )


def _check_max_hold(
    max_hold: Seconds | None, timeout: Seconds | None, at_least_for: Seconds
) -> None:
    if max_hold is None:
        return
    if timeout is None and settings.configured:
        timeout = conf.timeout
    if timeout is None:
        validators.lease("max_hold", max_hold)
    else:
        validators.max_hold("max_hold", max_hold, timeout, at_least_for)


def _check_using(alias: object) -> None:
    _check_type("using", alias, str)
    if alias is None or not settings.configured or alias in settings.CACHES:
        return
    known = ", ".join(map(repr, settings.CACHES))
    raise ValueError(
        f"using={without_secrets(short_repr(alias))} is not a cache alias. CACHES has: {known}"
    )


def _check_names(option: str, value: object) -> None:
    wanted = f"{option} must be a list of argument names, or '*' for all, not {short_repr(value)}"
    if isinstance(value, str):
        raise ValueError(wanted)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise TypeError(f"{wanted} ({type(value).__name__})")
    if not value:
        raise ValueError(wanted)
    for name in value:
        _check_type(f"each name in {option}", name, str)


def _check_type(option: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(
            f"{option} must be a {kind.__name__}, not {short_repr(value)} ({type(value).__name__})"
        )
