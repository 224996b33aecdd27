"""The options of `single_instance`, checked when the module is imported."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
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


def _choice(choices: Collection[str], option: str, value: object) -> None:
    if value not in list(choices):
        raise ValueError(
            f"{option}={short_repr(value)} is not one of {', '.join(map(repr, choices))}"
        )


def _str(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(
            f"{option} must be a str, not {short_repr(value)} ({type(value).__name__})"
        )


def _argument_names(option: str, value: object) -> None:
    if value == "*":
        return
    wanted = f"{option} must be a list of argument names, or '*' for all, not {short_repr(value)}"
    if not isinstance(value, (str, list, tuple, set, frozenset)):
        raise TypeError(f"{wanted} ({type(value).__name__})")
    if isinstance(value, str) or not value:
        raise ValueError(wanted)
    for name in value:
        _str(f"each name in {option}", name)


def _key(option: str, value: object) -> None:
    if not (isinstance(value, str) or callable(value)):
        raise TypeError(
            f"{option} must be a template (str) or a callable, not {short_repr(value)}"
            f" ({type(value).__name__})"
        )


def _limit(option: str, value: object) -> None:
    validate = validators.callback if callable(value) else validators.count
    validate(option, value)


def _cache_alias(option: str, value: object) -> None:
    _str(option, value)
    if settings.configured and value not in settings.CACHES:
        known = ", ".join(map(repr, settings.CACHES))
        raise ValueError(
            f"{option}={without_secrets(short_repr(value))} is not a cache alias. CACHES has:"
            f" {known}"
        )


VALIDATORS: dict[str, Callable[[str, Any], object]] = {
    "unique_on": _argument_names,
    "key": _key,
    "timeout": validators.lease,
    "blocking_timeout": validators.wait,
    "countdown": validators.wait,
    "max_retries": partial(validators.count, least=0),
    "limit": _limit,
    "max_hold": validators.lease,
    "queue_timeout": validators.lease,
    "hold_on_retry": validators.flag,
    "on_lost": validators.on_lost,
    "using": _cache_alias,
}
"""The validators of the options that are not None."""


@dataclass(eq=False, slots=True, kw_only=True)
class Options:
    """The options of `single_instance`, which documents them."""

    unique_on: Collection[str] | None = None
    key: str | Callable[..., str] | None = None
    mode: str = "while_executing"
    on_conflict: str = "skip"
    timeout: Seconds | None = None
    blocking_timeout: Seconds | None = None
    countdown: Seconds | None = None
    max_retries: int | None = None
    limit: int | Callable[..., int] | None = None
    at_least_for: Seconds = 0
    max_hold: Seconds | None = None
    queue_timeout: Seconds | None = None
    hold_on_retry: bool | None = None
    on_lost: Callable[..., Any] | Literal["abort"] | None = None
    using: str | None = None

    locking: Locking = field(init=False)

    policy: str = field(init=False)
    """The policy when a task starts. No task is queued then that it could replace."""

    holds_on_retry: bool = field(init=False)
    """Whether the lock is kept for the task's own retry."""

    may_have_queue_lock: bool = field(init=False)
    """Whether a task can have a queue lock, from when it was sent or from its last retry."""

    max_queue_seconds: float = field(init=False)
    """The lease of a queue lock."""

    of_lock: dict[str, Any] = field(init=False)
    """The options of the lock. A lock validates each of them again, so only those that are set."""

    def __post_init__(self) -> None:
        _choice(MODES, "mode", self.mode)
        _choice(POLICIES, "on_conflict", self.on_conflict)
        validators.at_least("at_least_for", self.at_least_for)
        for option, validate in VALIDATORS.items():
            if getattr(self, option) is not None:
                validate(option, getattr(self, option))

        self.locking = locking = MODES[self.mode]
        self.policy = "skip" if self.on_conflict == "replace" else self.on_conflict
        self.holds_on_retry = (
            locking.when_sent and locking.while_running and not locking.separate
            if self.hold_on_retry is None
            else self.hold_on_retry
        )
        self.may_have_queue_lock = locking.when_sent or self.holds_on_retry
        queue_timeout = QUEUE_TIMEOUT_SECONDS if self.queue_timeout is None else self.queue_timeout
        self.max_queue_seconds = validators.seconds("queue_timeout", queue_timeout)
        of_lock = {
            name: getattr(self, name) for name in ("timeout", "blocking_timeout", "max_hold")
        }
        of_lock["at_least_for"] = self.at_least_for or None
        self.of_lock = {name: value for name, value in of_lock.items() if value is not None}
        self._check_combination()

    def _check_combination(self) -> None:
        mode, locking, on_conflict = f"mode={self.mode!r}", self.locking, self.on_conflict
        if on_conflict == "replace" and not locking.when_sent:
            raise ValueError(
                "on_conflict='replace' requires a mode that locks when the task is sent"
                f" ({', '.join(repr(name) for name in MODES if MODES[name].when_sent)}),"
                f" not {mode}"
            )
        if locking.when_sent and on_conflict not in WHEN_SENT:
            raise ValueError(
                f"on_conflict={on_conflict!r} requires mode='while_executing'. With {mode} use one"
                f" of {', '.join(map(repr, WHEN_SENT))}."
            )
        required = {"blocking_timeout": "wait", "max_retries": "retry"}
        if not locking.separate:
            required["countdown"] = "retry"
        for option, policy in required.items():
            value = getattr(self, option)
            if value is not None and on_conflict != policy:
                raise ValueError(
                    f"{option}={value!r} requires on_conflict={policy!r},"
                    f" not on_conflict={on_conflict!r}"
                )
        if self.hold_on_retry and not locking.while_running:
            raise ValueError(
                f"hold_on_retry=True has no effect with {mode}, which holds no lock while the task"
                " runs"
            )
        if self.queue_timeout is not None and not self.may_have_queue_lock:
            raise ValueError(
                f"queue_timeout={self.queue_timeout!r} has no effect with {mode}. It requires"
                " hold_on_retry=True or a mode that locks when the task is sent."
            )
        timeout = conf.timeout if self.timeout is None and settings.configured else self.timeout
        if self.max_hold is not None and timeout is not None:
            validators.max_hold("max_hold", self.max_hold, timeout, self.at_least_for)
        if self.unique_on is not None and self.key is not None:
            raise ValueError(
                f"unique_on={short_repr(self.unique_on)} and key={short_repr(self.key)} cannot be"
                " combined: use one of them"
            )
        if locking.separate and isinstance(self.key, str) and self.key.endswith(QUEUE_LOCK_SUFFIX):
            raise ValueError(
                f"key={short_repr(self.key)} must not end with {QUEUE_LOCK_SUFFIX!r}, which"
                f" {mode} reserves for its queue locks"
            )
