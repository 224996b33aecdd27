"""The test project's settings, on the server and the database file that `tests.plugin` names."""

import json
import os
from importlib.util import find_spec

from testproject.settings import *  # noqa: F403  they are all wanted
from testproject.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.fencing"]
if find_spec("django_celery_beat"):
    INSTALLED_APPS.append("django_celery_beat")

# A file and not memory: Celery's workers and other processes read and write it too.
DATABASES["default"]["TEST"] = {"NAME": DATABASES["default"]["NAME"]}

# A test passes its own databases to the processes that it starts.
DATABASES.update(json.loads(os.environ.get("TESTS_DATABASES", "{}")))

# Commands would print it about the tasks of whichever tests ran before in the same process.
SILENCED_SYSTEM_CHECKS = ["redislock.W006"]

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

IMMEDIATE = "django.tasks.backends.immediate.ImmediateBackend"
DUMMY = "django.tasks.backends.dummy.DummyBackend"
SINGLE = "django_redislock.tasks.SingleInstanceBackend"

TASKS = {
    "default": {"BACKEND": IMMEDIATE},
    "single": {"BACKEND": SINGLE, "OPTIONS": {"BACKEND": IMMEDIATE}},
    "queue": {"BACKEND": SINGLE, "OPTIONS": {"BACKEND": DUMMY}},  # runs nothing
}
