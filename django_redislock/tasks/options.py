"""The options of `single_instance`, checked when the module is imported."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, Literal, cast, get_type_hints

from django.conf import settings

from django_redislock import validators
from django_redislock.conf import conf
from django_redislock.names import short_repr
from django_redislock.validators import Seconds

from .policies import POLICIES, Policy

QUEUE_TIMEOUT_SECONDS = 3600.0


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


def _mode(option: str, value: Any) -> str:
    if value not in list(MODES):
        raise ValueError(
            f"{option}={short_repr(value)} is not one of {', '.join(map(repr, MODES))}"
        )
    return str(value)


def _instance(kinds: Any, expected: str, option: str, value: Any) -> Any:
    if not isinstance(value, kinds):
        kind = type(value).__name__
        raise TypeError(f"{option} must be {expected}, not {short_repr(value)} ({kind})")
    return value


_str = partial(_instance, str, "a str")
_key = partial(_instance, (str, Callable), "a template (str) or a callable")


def _argument_names(option: str, value: Any) -> Any:
    expected = "a list of argument names, or '*' for all"
    _instance((str, list, tuple, set, frozenset), expected, option, value)
    if value != "*" and (isinstance(value, str) or not value):
        raise ValueError(f"{option} must be {expected}, not {short_repr(value)}")
    for name in value:
        _str(f"each name in {option}", name)
    return value


def _limit(option: str, value: Any) -> Any:
    validate = validators.callback if callable(value) else validators.count
    return validate(option, value)


def _cache_alias(option: str, value: Any) -> str:
    alias: str = _str(option, value)
    if settings.configured and alias not in settings.CACHES:
        known = ", ".join(map(repr, settings.CACHES))
        name = short_repr(alias)
        raise ValueError(f"{option}={name} is not a cache alias. CACHES has: {known}")
    return alias


@dataclass(eq=False, slots=True, kw_only=True)
class Options:
    """The options of `single_instance`, which documents them, with their validators."""

    unique_on: Annotated[Collection[str] | None, _argument_names] = None
    key: Annotated[str | Callable[..., str] | None, _key] = None
    mode: Annotated[str, _mode] = "while_executing"
    on_conflict: Annotated[str, _str] = "skip"
    timeout: Annotated[Seconds | None, validators.lease] = None
    blocking_timeout: Annotated[Seconds | None, validators.wait] = None
    countdown: Annotated[Seconds | None, validators.wait] = None
    max_retries: Annotated[int | None, partial(validators.count, least=0)] = None
    max_queued: Annotated[int | None, validators.count] = None
    limit: Annotated[int | Callable[..., int] | None, _limit] = None
    at_least_for: Annotated[Seconds, validators.at_least] = 0
    max_hold: Annotated[Seconds | None, validators.lease] = None
    queue_timeout: Annotated[Seconds | None, validators.lease] = None
    hold_on_retry: Annotated[bool | None, validators.flag] = None
    on_lost: Annotated[Callable[..., Any] | Literal["abort"] | None, validators.on_lost] = None
    using: Annotated[str | None, _cache_alias] = None

    locking: Locking = field(init=False)

    policy: Policy = field(init=False)

    holds_on_retry: bool = field(init=False)
    """Whether the lock is kept for the task's own retry."""

    may_have_queue_lock: bool = field(init=False)
    """Whether a task can have a queue lock, from when it was sent or from its last retry."""

    max_queue_seconds: float = field(init=False)
    """The lease of a queue lock."""

    of_lock: dict[str, Any] = field(init=False)
    """The options of the lock. A lock validates each of them again, so only those that are set."""

    def __post_init__(self) -> None:
        for option, validate in VALIDATORS.items():
            if getattr(self, option) is not DEFAULTS[option]:
                setattr(self, option, validate(option, getattr(self, option)))
        self.locking = locking = MODES[self.mode]
        self.policy = self._policy_class()(self)
        self.holds_on_retry = (
            self.mode == "until_executed" if self.hold_on_retry is None else self.hold_on_retry
        )
        self.may_have_queue_lock = locking.when_sent or self.holds_on_retry
        self._check_combination()
        self.max_queue_seconds = cast("float", self.queue_timeout or QUEUE_TIMEOUT_SECONDS)
        options = "timeout", "blocking_timeout", "at_least_for", "max_hold", "on_lost"
        self.of_lock = {
            option: getattr(self, option)
            for option in options
            if getattr(self, option) != DEFAULTS[option]
        }

    def _policy_class(self) -> type[Policy]:
        choices = {
            name: policy for name, policy in POLICIES.items() if policy.works_with(self.locking)
        }
        if self.on_conflict not in choices:
            raise ValueError(
                f"on_conflict={short_repr(self.on_conflict)} does not work with"
                f" mode={self.mode!r}. Use one of {', '.join(map(repr, choices))}"
            )
        return choices[self.on_conflict]

    def _require(self, option: str, is_possible: bool, required: str) -> None:
        value = getattr(self, option)
        if value is not None and not is_possible:
            raise ValueError(f"{option}={short_repr(value)} requires {required}")

    def _check_combination(self) -> None:
        """Raise `ValueError` if options cannot be combined."""
        locking = self.locking
        not_mode = f"not mode={self.mode!r}"
        used = {*self.policy.options}
        if locking.separate:
            used.add("countdown")  # a queued task that meets the running one is sent again
        for policy in POLICIES.values():
            for option in policy.options:
                self._require(
                    option,
                    option in used,
                    f"on_conflict={policy.name!r}, not on_conflict={self.on_conflict!r}",
                )
        for option, is_possible, required in (
            (
                "hold_on_retry",
                locking.while_running or not self.hold_on_retry,
                f"a mode that holds a lock while the task runs, {not_mode}",
            ),
            (
                "queue_timeout",
                self.may_have_queue_lock,
                f"hold_on_retry=True or a mode that locks when the task is sent, {not_mode}",
            ),
            ("key", self.unique_on is None, "no unique_on: use one of them"),
        ):
            self._require(option, is_possible, required)
        timeout = self.timeout
        if timeout is None and settings.configured:
            timeout = conf.timeout
        if self.max_hold is not None and timeout is not None:
            validators.max_hold("max_hold", self.max_hold, timeout, self.at_least_for)


VALIDATORS: dict[str, Callable[[str, Any], Any]] = {
    option: hint.__metadata__[0]
    for option, hint in get_type_hints(Options, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}

DEFAULTS = {each.name: each.default for each in fields(Options)}
