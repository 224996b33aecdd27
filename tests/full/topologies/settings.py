"""The tests' settings, with locks in the place from the environment."""

import json
import os

from tests.settings import *  # noqa: F403  all of them

from . import places

globals().update(places.settings(*json.loads(os.environ[places.VARIABLE])))
