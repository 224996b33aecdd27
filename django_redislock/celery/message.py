"""What the messages of single-instance tasks carry with them, as headers."""

from collections.abc import Mapping
from typing import Any

from django_redislock.identity import complete_id
from django_redislock.names import check_name

CONFLICTS = "redislock_conflicts"
"""How often a task was sent again because of a conflict."""

AGAIN = "redislock_again"
"""Whether an execution of the same task may have begun before it was sent again."""

PLACE = "redislock_place"
"""The name of the place that was taken when the task was sent, or that is promised to it."""

EXPECTED = "redislock_expected"
"""That somebody counts on the result of just this message."""

DUPLICATE = "redislock_duplicate"
"""The id of the task, or "", that had the place when this one was sent all the same, because
somebody counts on its result: it is to end without having run."""

OURS = (CONFLICTS, AGAIN, PLACE, EXPECTED, DUPLICATE)
"""All of them."""


def headers_of(request: Any) -> dict[str, Any]:
    """The headers of the message that a request is of."""
    # What traces tasks may put headers of its own as "headers" among a message's, and then Celery
    # tells of those alone. But it tells of each header by itself, too.
    each, told = getattr(request, "__dict__", {}), getattr(request, "headers", None)
    ours = {name: each[name] for name in OURS if name in each}
    return {**(told if isinstance(told, dict) else {}), **ours}


def id_of(request: Any) -> str | None:
    """The id of the message that a request is of, as text: its sender may have chosen a UUID."""
    found = getattr(request, "id", None)
    return None if found is None else str(found)


def duplicate_of(headers: Mapping[str, Any]) -> str | None:
    """Return the id of the task that made the message a duplicate, or None if it is not known."""
    found = headers.get(DUPLICATE)
    return complete_id(found) if isinstance(found, str) else None


def place_in(headers: Mapping[str, Any]) -> str | None:
    """The name of the message's place, if it has one."""
    # Whoever sends a task can say what they like in its headers.
    try:
        return check_name(headers.get(PLACE))
    except (TypeError, ValueError):
        return None
