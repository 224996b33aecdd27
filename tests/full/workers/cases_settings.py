"""The tests' settings, and an alias on a server that a test can restart without the broker."""

import os

from tests.settings import *  # noqa: F403  all of them
from tests.settings import CACHES

CACHES["restarted"] = CACHES["default"] | {"LOCATION": os.environ["CASES_RESTARTED_URL"]}
