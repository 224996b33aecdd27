"""The settings of the tests, with the URLs of `views`."""

from tests.settings import *  # noqa: F403  they are all wanted

ROOT_URLCONF = "tests.full.web.views"
ALLOWED_HOSTS = ["*"]
