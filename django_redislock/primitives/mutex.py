"""One holder at a time."""

from .base import Lock


class Mutex(Lock):
    """A mutual exclusion lock: of all who ask for its name, one holds it."""

    kind = "mutex"
    capacity = 1
    weight = 1
