"""The tests' settings, with locks in the place that the environment tells."""

import json
import os

from tests.settings import *  # noqa: F403  they are all wanted

from .places import PLACES, VARIABLE

_place, _told = json.loads(os.environ[VARIABLE])
globals().update(PLACES[_place](**_told))
