"""The options of locks."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .. import validators
from ..validators import Seconds

if TYPE_CHECKING:
    from .base import BaseLock


class MoreOptions(TypedDict, total=False):
    """The options that redis-py's Lock does not have. `LockManager.lock` describes them."""

    auto_renewal: bool
    reentrant: bool
    at_least_for: Seconds
    max_hold: Seconds | None
    min_replicas: int
    release_on_commit: bool | str
    metadata: Mapping[str, Any] | None
    on_lost: "Callable[[BaseLock], object] | Literal['abort'] | None"


class LockOptions(MoreOptions, total=False):
    """The options of every lock."""

    timeout: Seconds | None
    blocking: bool
    blocking_timeout: Seconds | None


OPTION_VALIDATORS: Mapping[str, Callable[[str, Any], Any]] = {
    "timeout": validators.lease,
    "blocking": validators.flag,
    "blocking_timeout": validators.wait,
    "auto_renewal": validators.flag,
    "reentrant": validators.flag,
    "at_least_for": validators.at_least,
    "max_hold": validators.lease,
    "min_replicas": partial(validators.count, least=0, most=100),
    "release_on_commit": validators.database,
    "metadata": validators.metadata,
    "on_lost": validators.on_lost,
}
