"""The options of `single_instance`, checked when the module is imported."""

from collections.abc import Callable, Collection, Sequence
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


def _limit(option: str, value: object) -> object:
    validate = validators.callback if callable(value) else validators.count
    return validate(option, value)


VALIDATORS: dict[str, Callable[[str, Any], object]] = {
    "timeout": validators.lease,
    "blocking_timeout": validators.wait,
    "countdown": validators.wait,
    "max_retries": partial(validators.count, least=0),
    "limit": _limit,
    "queue_timeout": validators.lease,
    "hold_on_retry": validators.flag,
    "on_lost": validators.on_lost,
}
"""The validators of the options that are not None."""


@dataclass(eq=False, slots=True)
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

    max_queue_seconds: float = field(init=False)
    """The lease of a queue lock."""

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, tuple(MODES))
        _check_choice("on_conflict", self.on_conflict, POLICIES)
        for option, validate in VALIDATORS.items():
            if getattr(self, option) is not None:
                validate(option, getattr(self, option))
        validators.at_least("at_least_for", self.at_least_for)
        self.locking = locking = MODES[self.mode]
        self.holds_on_retry = (
            locking.when_sent and locking.while_running and not locking.separate
            if self.hold_on_retry is None
            else self.hold_on_retry
        )
        self.may_have_queue_lock = locking.when_sent or self.holds_on_retry
        self.max_queue_seconds = (
            QUEUE_TIMEOUT_SECONDS
            if self.queue_timeout is None
            else validators.lease("queue_timeout", self.queue_timeout)
        )
        self._check_combination()
        self._check_max_hold()
        self._check_name()
        _check_using(self.using)

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

    def _check_max_hold(self) -> None:
        if self.max_hold is None:
            return
        timeout = self.timeout
        if timeout is None and settings.configured:
            timeout = conf.timeout
        if timeout is None:
            validators.lease("max_hold", self.max_hold)
        else:
            validators.max_hold("max_hold", self.max_hold, timeout, self.at_least_for)

    def _check_name(self) -> None:
        key, unique_on = self.key, self.unique_on
        if unique_on is not None and key is not None:
            raise ValueError(
                f"unique_on={short_repr(unique_on)} and key={short_repr(key)} cannot be combined:"
                " use one of them"
            )
        if key is not None and not (isinstance(key, str) or callable(key)):
            raise TypeError(
                f"key must be a template (str) or a callable, not {short_repr(key)}"
                f" ({type(key).__name__})"
            )
        is_reserved = isinstance(key, str) and key.endswith(QUEUE_LOCK_SUFFIX)
        if self.locking.separate and is_reserved:
            raise ValueError(
                f"key={short_repr(key)} must not end with {QUEUE_LOCK_SUFFIX!r}, which"
                f" mode={self.mode!r} reserves for its queue locks"
            )
        if unique_on is not None and unique_on != "*":
            _check_names(unique_on)


def _check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(
            f"{option}={short_repr(value)} is not one of {', '.join(map(repr, choices))}"
        )


def _check_using(alias: object) -> None:
    if alias is None:
        return
    _check_str("using", alias)
    if settings.configured and alias not in settings.CACHES:
        known = ", ".join(map(repr, settings.CACHES))
        raise ValueError(
            f"using={without_secrets(short_repr(alias))} is not a cache alias. CACHES has: {known}"
        )


def _check_names(names: object) -> None:
    wanted = f"unique_on must be a list of argument names, or '*' for all, not {short_repr(names)}"
    if not isinstance(names, (str, list, tuple, set, frozenset)):
        raise TypeError(f"{wanted} ({type(names).__name__})")
    if isinstance(names, str) or not names:
        raise ValueError(wanted)
    for name in names:
        _check_str("each name in unique_on", name)


def _check_str(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(
            f"{option} must be a str, not {short_repr(value)} ({type(value).__name__})"
        )
