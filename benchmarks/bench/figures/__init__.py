"""The figures, by name."""

from collections.abc import Callable, Mapping

from ..figure import Bench, Figure
from .alone import cycle, importing, renewal, server
from .many import many
from .tasks import tasks
from .waiting import crowd, growth, handover

Figures = Mapping[str, Callable[[Bench], Figure]]

EVERYWHERE: Figures = {
    "cycle": cycle,
    "many": many,
    "handover": handover,
    "renewal": renewal,
    "tasks": tasks,
}

LOOPBACK_ONLY: Figures = {
    "crowd": crowd,
    "server": server,
    "start": importing,
    "growth": growth,
}
"""A network adds the same time to these for all contenders, or nothing."""


def figures_at(round_trip: float) -> Figures:
    """Return the figures to measure over a network, or without one if `round_trip` is 0."""
    return EVERYWHERE if round_trip else {**EVERYWHERE, **LOOPBACK_ONLY}
