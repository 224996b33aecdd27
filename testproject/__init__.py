"""A real Django and Celery site: the demo, and the settings of the tests."""

from .celery import app as celery_app

__all__ = ["celery_app"]
