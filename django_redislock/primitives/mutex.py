"""One holder at a time."""

from .base import BaseLock


class Mutex(BaseLock):
    """A mutual exclusion lock: of all who ask for its name, one holds it."""

    kind = "mutex"
    capacity = 1
    weight = 1
