"""`single_instance`: a task, or any other function, that runs only once at a time."""

try:
    import celery  # noqa: F401  all modules of this package need it
except ImportError as error:
    raise ImportError(
        "single_instance needs Celery: pip install 'django-redislock[celery]'"
    ) from error

from .call import current_lock
from .decorator import single_instance

__all__ = ["current_lock", "single_instance"]
