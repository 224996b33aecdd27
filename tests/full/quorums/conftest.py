"""Fixtures of the tests in this folder."""

from tests.lock_fixtures import moving_clock  # noqa: F401
from tests.quorums import all_five, five, hanging  # noqa: F401
