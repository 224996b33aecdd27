"""The clock with which a holder measures its own lease."""

import time
from functools import partial

now = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Monotonic seconds. They include the time in which the system was suspended, if it can tell."""
