"""The figures, by their letters."""

from collections.abc import Callable

from ..figure import Bench, Figure
from .crowd import crowd
from .cycle import cycle
from .growth import growth
from .handover import handover
from .importing import importing
from .listing import listing
from .renewal import renewal
from .server import server
from .tasks import tasks

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
