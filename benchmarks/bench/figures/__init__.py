"""The figures, by letter."""

from collections.abc import Callable

from ..figure import Bench, Figure
from .alone import cycle, importing, renewal, server
from .listing import listing
from .tasks import tasks
from .waiting import crowd, growth, handover

FIGURES: dict[str, Callable[[Bench], Figure]] = {
    "a": cycle,
    "b": handover,
    "c": crowd,
    "d": renewal,
    "e": listing,
    "f": tasks,
    "g": server,
    "h": importing,
    "i": growth,
}
