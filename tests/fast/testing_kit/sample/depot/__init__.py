"""A small project that tests its locks with `django_redislock.testing`."""

from .celery import app as celery_app

__all__ = ["celery_app"]
