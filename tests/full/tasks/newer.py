"""A module that workers of an older release do not have."""

import os

from django.tasks import task

from django_redislock import single_instance
from tests.celery_app import note

if os.environ.get("TESTS_RELEASE") == "older":
    raise ImportError("This release has no such module")


@single_instance(mode="until_executed", key="tasks:{run}", timeout=5)
@task(backend="single")
def newer(run):
    note(run, "begin")
    return "ran"
