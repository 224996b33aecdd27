"""Settings of the test project with the theme of the admin that ``TESTS_THEME`` names."""

import os

from tests.settings import *  # noqa: F403  they are all wanted
from tests.settings import INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = [os.environ["TESTS_THEME"], *INSTALLED_APPS]

JAZZMIN_SETTINGS = {"use_google_fonts_cdn": False}

ROOT_URLCONF = "tests.full.browser.theme_urls"

# The themes have inline scripts and styles, which the policy of the test project forbids.
MIDDLEWARE = [each for each in MIDDLEWARE if "ContentSecurityPolicy" not in each]
