"""Health checks: whether locking works now, and what could make it fail.

No lock depends on these modules. They send commands only when an operator asks for a check.
"""

from .examine import examine, unreached
from .probe import ping
from .results import CHECKS, Finding, Health
from .server_info import eviction_policy

__all__ = ["CHECKS", "Finding", "Health", "eviction_policy", "examine", "ping", "unreached"]
