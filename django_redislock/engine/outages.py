"""Outages: which errors pass by themselves, and how long to pause before the next request."""

import logging
import random
import re
import ssl

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..backends.cluster import is_redirect
from ..text import error_text
from .timing import OUTAGE_PAUSE_SECONDS

logger = logging.getLogger("django_redislock")

PASSING = re.compile(
    r"(?:^|-)(?:ASK|BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MOVED|NOREPLICAS|READONLY|TRYAGAIN|UNBLOCKED)\b"
)
"""Error replies of a server that fails over, starts, lacks replicas or runs a long script. Before
Redis 7 they are a part of a script's error, after a hyphen."""


def is_outage(error: BaseException) -> bool:
    """Return whether the server may well execute the same request a little later.

    A wrong password, missing rights or a wrong database do not pass. Neither does a full server
    (OOM), or one that cannot write to its disk (MISCONF): an operator has to act.
    """
    if isinstance(error, ConnectionError):
        if isinstance(error, AuthenticationError | AuthorizationError):
            return False
        cause = error.__cause__ or error.__context__
        return not isinstance(cause, ssl.SSLCertVerificationError)
    if isinstance(error, ResponseError):
        # redis-py removes the word from the message of an error that has a class of its own.
        return is_redirect(error) or PASSING.search(str(error)) is not None
    return isinstance(error, RedisTimeoutError)


def outage_pause(failures: int) -> float:
    """Return the seconds to pause after that many failures in a row.

    They are random, so that the processes of a site do not all come back at the same moment.
    """
    shortest, longest = OUTAGE_PAUSE_SECONDS
    pause = min(longest, shortest * 2 ** min(failures - 1, 10))
    return random.uniform(max(shortest, pause / 2), pause)  # noqa: S311  no secret


def log_outage(name: str, error: Exception, waiters: int = 1) -> None:
    """Log that waiters, of which one waits for the lock `name`, go on waiting."""
    logger.warning(
        "Waiting for lock through an outage: name=%r waiters=%d error=%s",
        *(name, waiters, error_text(error)),
    )
