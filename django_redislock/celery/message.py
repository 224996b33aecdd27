"""The record of a Celery message: everything that is read from one is validated here.

A sender chooses the id, the headers and even the attributes of `task.request`. No other module
reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_redislock.identity import complete_id
from django_redislock.names import check_name

CONFLICTS = "redislock_conflicts"
"""How often the task was sent again because of a conflict."""

AGAIN = "redislock_again"
"""Whether an execution of the same task may have begun before it was sent again."""

PLACE = "redislock_place"
"""The name of the queue lock that the task took when it was sent, or that is promised to it."""

EXPECTED = "redislock_expected"
"""Whether other tasks or a caller depend on the result of this message."""

DUPLICATE = "redislock_duplicate"
"""The id of the task, or "", that held the queue lock when this duplicate was sent. A duplicate
whose result is expected ends without running."""

OURS = (CONFLICTS, AGAIN, PLACE, EXPECTED, DUPLICATE)

MAX_CONFLICTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Message:
    """The content of a message. A forged value counts as absent."""

    task_id: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    headers: Mapping[str, Any] = field(default_factory=dict)
    """All headers, unchecked, to be passed on if the task is sent again."""

    conflicts: int = 0
    is_resent: bool = False
    queue_lock: str | None = None

    is_duplicate: bool = False
    duplicate_of: str | None = None
    """The id of the task that made the message a duplicate. None if unknown."""

    is_expected: bool = False
    is_redelivered: bool = False
    retries: int = 0

    has_queue: bool = False
    """Whether a worker received the message, so that the task can run again later."""

    @classmethod
    def of(cls, request: Any, headers: Any = None) -> Self:
        """Return the record of a request: `task.request`, or the request of a worker's pool.

        Args:
            request: The request.
            headers: The headers, if `request` does not have them.
        """
        headers = headers_of(request) if headers is None else headers
        headers = headers if isinstance(headers, dict) else {}
        delivery, args, kwargs = (
            getattr(request, "delivery_info", None),
            getattr(request, "args", None),
            getattr(request, "kwargs", None),
        )
        return cls(
            task_id=id_of(request),
            args=tuple(args) if isinstance(args, list | tuple) else (),
            kwargs=dict(kwargs) if isinstance(kwargs, dict) else {},
            headers=headers,
            conflicts=_count(headers.get(CONFLICTS)),
            is_resent=bool(headers.get(AGAIN)),
            queue_lock=_name(headers.get(PLACE)) if PLACE in headers else None,
            is_duplicate=DUPLICATE in headers,
            duplicate_of=_id(headers.get(DUPLICATE)),
            # Celery itself reports only these followers.
            is_expected=bool(
                headers.get(EXPECTED)
                or getattr(request, "chord", None)
                or getattr(request, "group", None)
                or getattr(request, "chain", None)
                or getattr(request, "callbacks", None)
                or getattr(request, "errbacks", None)
            ),
            is_redelivered=isinstance(delivery, dict) and bool(delivery.get("redelivered")),
            retries=_count(getattr(request, "retries", 0)),
            has_queue=not (
                getattr(request, "called_directly", False) or getattr(request, "is_eager", False)
            ),
        )

    def has_arguments_of(self, signature: Any) -> bool:
        """Return whether a signature has the arguments of this message."""
        return (self.args, self.kwargs) == (tuple(signature.args), dict(signature.kwargs))


NO_MESSAGE = Message()
"""The record of a direct call."""


def headers_of(request: Any) -> dict[str, Any]:
    """Return the headers of a request's message.

    Software that traces tasks can add a header with the name "headers". Celery's `headers` are
    then those alone, but each header is an attribute, too.
    """
    attributes, headers = getattr(request, "__dict__", {}), getattr(request, "headers", None)
    found = dict(headers) if isinstance(headers, dict) else {}
    for name in OURS:
        if name in attributes:
            found[name] = attributes[name]
    return found


def id_of(request: Any) -> str | None:
    """Return the id of a request's message as text. A sender can have chosen a UUID."""
    found = getattr(request, "id", None)
    return None if found is None else str(found)


def seconds_until(moment: Any, app: Any) -> float | None:
    """Return the seconds until a moment, as Celery reads it. A number is the seconds already."""
    if moment is None or isinstance(moment, int | float):
        return moment
    then: Any = maybe_iso8601(moment)
    return float((maybe_make_aware(then, app.timezone) - app.now()).total_seconds())


def _count(value: object) -> int:
    return min(max(value, 0), MAX_CONFLICTS) if isinstance(value, int) else 0


def _id(value: object) -> str | None:
    return complete_id(value) if isinstance(value, str) else None


def _name(value: object) -> str | None:
    try:
        return check_name(value)
    except (TypeError, ValueError):
        return None
