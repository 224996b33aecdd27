"""The tests' settings, with the locks on a server that a test can stop without the broker."""

import os

from tests.settings import *  # noqa: F403  all of them
from tests.settings import CACHES

CACHES["default"]["LOCATION"] = os.environ["OUTAGE_URL"]
