"""Single-instance tasks and functions: `single_instance` for all task frameworks."""

from . import checks  # noqa: F401  it registers system checks
from .decorator import single_instance
from .django import SKIPPED, SingleInstanceBackend
from .execution import current_lock
from .skipped import was_skipped

__all__ = ["SKIPPED", "SingleInstanceBackend", "current_lock", "single_instance", "was_skipped"]
