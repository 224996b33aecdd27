"""The tests' settings, on a site that keeps the results of its tasks."""

from tests.settings import *  # noqa: F403  they are all wanted
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_celery_results"]
