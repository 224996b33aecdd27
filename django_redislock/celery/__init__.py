"""`single_instance`: a task, or any function, that runs once at a time."""

from .call import current_lock
from .decorator import single_instance

__all__ = ["current_lock", "single_instance"]
