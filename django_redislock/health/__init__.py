"""Whether locking works now: a probe of it, and findings on what it stands on.

Nothing here is asked of Redis unless somebody wants to know; no lock depends on it.
"""

from .examining import CHECKS, examine, unreached
from .finding import Finding, Health
from .probing import ping
from .resources import eviction_policy

__all__ = ["CHECKS", "Finding", "Health", "eviction_policy", "examine", "ping", "unreached"]
