"""Fixtures of the tests in this folder."""

import django

from tests.celery_worker import run  # noqa: F401

if django.VERSION < (6, 0):  # without django.tasks
    collect_ignore_glob = ["test_*.py"]
