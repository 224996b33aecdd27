"""The tests' settings, with locks in the place that the environment tells."""

import json
import os

from tests.settings import *  # noqa: F403  they are all wanted

from . import places

globals().update(places.settings(*json.loads(os.environ[places.VARIABLE])))
