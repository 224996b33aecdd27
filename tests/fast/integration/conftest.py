"""Fixtures of the tests in this folder."""

from tests.lock_fixtures import (  # noqa: F401
    alias_on,
    default_sigterm,
    either_backend,
    manager,
    moving_clock,
    own_locks,
    own_redis,
    own_server,
    proxied,
    three_servers,
)
from tests.quorums import all_five, five, hanging  # noqa: F401
