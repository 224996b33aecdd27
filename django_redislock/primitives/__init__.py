"""The locks: one idea a file. `base` is the policy that all share; each of the others
says only its kind, its capacity and its weight."""

from .base import Lock
from .mutex import Mutex

__all__ = ["Lock", "Mutex"]
