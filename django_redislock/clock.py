"""The clock with which a holder measures its own lease."""

import time
from functools import partial

now = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Return monotonic seconds. On Linux they include the time in which the system was suspended."""
