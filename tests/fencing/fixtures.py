"""A pytest plugin: fixtures for tests with fenced rows, an SQLite and a PostgreSQL database.

It is a plugin, so that both tiers of tests share the databases of a test process.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connections

from tests.fencing import postgres


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which names the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One test process runs all tests of a folder that need the server.
    for item in items:
        if "fencing" in item.path.parts and _uses_postgres(item):
            item.add_marker(pytest.mark.xdist_group("postgres"))


def _uses_postgres(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("using") == "postgres"


@pytest.fixture(scope="session")
def sqlite_database(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker
) -> Iterator[dict[str, Any]]:
    """The alias `sqlite`, with all tables; its entry of DATABASES."""
    file = tmp_path_factory.mktemp("sqlite") / "db.sqlite3"
    engine = "django.db.backends.sqlite3"
    entry = {"ENGINE": engine, "NAME": str(file), "OPTIONS": {"timeout": 20}}
    with django_db_blocker.unblock(), postgres.migrated("sqlite", entry):
        yield entry


@pytest.fixture(scope="session")
def postgres_database(django_db_blocker) -> Iterator[dict[str, Any]]:
    """The alias `postgres`, with all tables; its entry of DATABASES."""
    with postgres.running() as folder, django_db_blocker.unblock():
        entry = postgres.database(folder)
        with postgres.migrated("postgres", entry):
            yield entry


@pytest.fixture(params=["sqlite", "postgres"])
def using(request: pytest.FixtureRequest, django_db_blocker) -> Iterator[str]:
    """An alias of each kind of database; what the test commits goes after it."""
    request.getfixturevalue(f"{request.param}_database")
    with django_db_blocker.unblock():
        yield request.param
        for model in apps.get_app_config("fencing").get_models():
            model.objects.using(request.param).all().delete()
        connections[request.param].close()


@pytest.fixture
def environment(request: pytest.FixtureRequest, using: str) -> dict[str, str]:
    """The environment that tells another process which database to use."""
    entry = request.getfixturevalue(f"{using}_database")
    return {"TESTS_DATABASES": json.dumps({using: entry})}
