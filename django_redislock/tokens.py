"""Lock tokens: what a caller sees, and what Redis compares.

Redis compares the stored token, which belongs to one request to acquire a lock. A random token is
stored as it is. A token that a caller chose can be used by several callers, so its stored form has
a random part: ``<token>:<random part>``. A lock token contains no colon.
"""

import os


def new_stored_token(token: str | None = None) -> str:
    """Return the stored token of a new request, whose caller chose `token`, or chose none."""
    random_part = os.urandom(16).hex()
    return random_part if token is None else f"{token}:{random_part}"


def token_of(stored_token: str) -> str:
    """Return the lock token that the caller knows."""
    return stored_token.partition(":")[0]
