"""What the tests in this folder share."""

import django
import pytest

from django_redislock.signals import task_skipped

if django.VERSION < (6, 0):  # it has no tasks
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def skipped():
    """The arguments of each signal about a skipped task."""
    received = []

    def listen(**facts):
        received.append(facts)

    task_skipped.connect(listen)
    yield received
    task_skipped.disconnect(listen)
