"""Single-instance tasks and functions: `single_instance` for all task frameworks."""

from .decorator import single_instance
from .django import SKIPPED, SingleInstanceBackend, was_skipped
from .execution import current_lock

__all__ = ["SKIPPED", "SingleInstanceBackend", "current_lock", "single_instance", "was_skipped"]
