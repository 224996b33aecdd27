"""The clock by which a holder judges its own lease."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds, never going back; where the system can, with the time it was suspended."""
    return time.clock_gettime(_CLOCK)
