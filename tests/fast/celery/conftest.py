"""Fixtures of the tests in this folder."""

from tests.celery_worker import (  # noqa: F401
    other_run,
    run,
    worker,
)
