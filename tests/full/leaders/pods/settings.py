"""The settings of a project that runs commands in several pods."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = ["tests.full.leaders.pods", *INSTALLED_APPS]
