from contextlib import ExitStack

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ..tools import wait_for_none_left
from . import project
from .page import Page


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The samples of a page are run in its order, wherever the page came to stand."""
    places = [number for number, item in enumerate(items) if _sample(item)]
    ours = [items[number] for number in places]
    pages = list(dict.fromkeys(_sample(item).page for item in ours))
    ours.sort(key=lambda item: (pages.index(_sample(item).page), _sample(item).line))
    for number, item in zip(places, ours, strict=True):
        items[number] = item


def _sample(item: pytest.Item):
    return item.callspec.params.get("sample") if hasattr(item, "callspec") else None


@pytest.fixture
def nothing_left_behind() -> None:
    """A sample may leave a lock to the next; of a whole page see `page`."""


@pytest.fixture(scope="session")
def page(request, redis_server, tmp_path_factory, django_db_setup, django_db_blocker):
    """The page of a sample, from its first to its last."""
    from testproject.celery import app

    redis_server.flushdb()
    with ExitStack() as stack:
        page = Page(request.param, tmp_path_factory.mktemp("page"), stack)
        stack.enter_context(project.started(page))
        stack.enter_context(django_db_blocker.unblock())
        stack.callback(call_command, "flush", verbosity=0, interactive=False)
        page.queries = stack.enter_context(CaptureQueriesContext(connection))
        app.set_current()
        stack.callback(app.set_current)  # a page's own may have taken its place
        stack.callback(page.close)
        yield page
    left = wait_for_none_left(redis_server)
    redis_server.flushdb()
    assert not left, f"{page.name} leaves behind: {', '.join(left)}"
