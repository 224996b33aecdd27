"""The clock by which a holder judges its own lease."""

import time
from functools import partial

now = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds, never going back; where the system can, with the time it was suspended."""
