"""Fixtures of the tests in this folder."""

from tests.fencing.fixtures import (  # noqa: F401
    postgres_database,
    pytest_collection_modifyitems,
    sqlite_database,
    using,
)
