"""`single_instance` for Celery's tasks."""

try:
    import celery  # noqa: F401  all modules of this package need it
except ImportError as error:
    raise ImportError(
        "django_redislock.celery needs Celery: pip install 'django-redislock[celery]'"
    ) from error

from django_redislock.tasks import current_lock, single_instance

from . import message, worker  # noqa: F401  they connect to signals

__all__ = ["current_lock", "single_instance"]
