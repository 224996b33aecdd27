"""Management commands: `IsolatedCommand` for your own ones, and ``manage.py locks``."""

from .isolated import IsolatedCommand

__all__ = ["IsolatedCommand"]
