"""Fixtures of the tests in this folder."""

import django

from tests.lock_fixtures import skipped  # noqa: F401

if django.VERSION < (6, 0):  # it has no tasks
    collect_ignore_glob = ["test_*.py"]
