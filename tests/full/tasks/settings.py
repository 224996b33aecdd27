"""The settings of the workers of `django.tasks`. Their packages need Django 6."""

import os

from tests.settings import *  # noqa: F403  all of them
from tests.settings import DATABASES, INSTALLED_APPS, SINGLE, redis_database

INSTALLED_APPS = [*INSTALLED_APPS, "django_tasks_db", "django_rq"]
DATABASES["default"]["NAME"] = os.environ["TASKS_DATABASE"]
RQ_QUEUES = {"default": {"URL": redis_database(4)}}

DATABASE = "django_tasks_db.DatabaseBackend"
QUEUE = "django_tasks_rq.RQBackend"

TASKS = {
    "default": {"BACKEND": DATABASE},
    "rq": {"BACKEND": QUEUE},
    "single": {"BACKEND": SINGLE, "OPTIONS": {"BACKEND": DATABASE}},
    "single_rq": {"BACKEND": SINGLE, "OPTIONS": {"BACKEND": QUEUE}},
}
