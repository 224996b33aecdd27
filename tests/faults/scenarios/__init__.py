"""One file for each family of scenarios."""

from importlib import import_module
from pkgutil import iter_modules

from ..scenario import SCENARIOS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

ALL = tuple(sorted(SCENARIOS, key=lambda scenario: scenario.number))
