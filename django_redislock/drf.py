"""Django REST framework: answer 409 if a lock was not acquired.

>>> REST_FRAMEWORK = {"EXCEPTION_HANDLER": "django_redislock.drf.exception_handler"}
"""

from collections.abc import Mapping
from typing import Any

from .exceptions import LockNotAcquired
from .guards import BUSY_STATUS, BUSY_TEXT, retry_after

try:
    from rest_framework.response import Response
    from rest_framework.views import exception_handler as default_handler
    from rest_framework.views import set_rollback
except ImportError as error:
    raise ImportError(
        "django_redislock.drf needs Django REST framework: pip install djangorestframework"
    ) from error


def exception_handler(exc: Exception, context: Mapping[str, Any]) -> Any:
    """Answer 409 with ``Retry-After`` if a view raises `LockNotAcquired`.

    The framework's own handler gets all other exceptions. `LockLost` is one of them, because the
    work of that view is done, so its client must not get a refusal.

    Args:
        exc: The exception of the view.
        context: The view and its arguments.

    Returns:
        The response, or None for an exception that is not handled.
    """
    if not isinstance(exc, LockNotAcquired):
        return default_handler(exc, context)
    set_rollback()
    headers = {"Retry-After": retry_after(exc)}
    return Response({"detail": BUSY_TEXT}, status=BUSY_STATUS, headers=headers)
