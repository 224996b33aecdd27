from collections.abc import Iterator

import pytest

from .reader import Reader
from .samples import Sample


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Samples are read in the order of their page, wherever that came to stand."""
    places = [number for number, item in enumerate(items) if _sample(item)]
    ours = [items[number] for number in places]
    pages = list(dict.fromkeys(_sample(item).page for item in ours))
    ours.sort(key=lambda item: (pages.index(_sample(item).page), _sample(item).line))
    for number, item in zip(places, ours, strict=True):
        items[number] = item


def _sample(item: pytest.Item) -> Sample | None:
    return item.callspec.params.get("sample") if hasattr(item, "callspec") else None


@pytest.fixture
def nothing_left_behind() -> None:
    """A sample may leave a lock to the next; what a page leaves is seen by its reader."""


@pytest.fixture(scope="session")
def reader(redis_server, django_db_setup, django_db_blocker, tmp_path_factory) -> Iterator[Reader]:
    reader = Reader(redis_server, django_db_blocker.unblock, tmp_path_factory.mktemp)
    yield reader
    reader.close()
