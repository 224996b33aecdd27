"""The code samples of each page run, in order."""

from contextlib import ExitStack
from pathlib import Path

import django
import pytest

from testproject.celery import app

from . import languages, project
from .page import Page
from .samples import pages, samples_of

PAGES = [
    name
    for name in pages()
    if samples_of(name) and not name.endswith("tutorial.md")  # see tests/full/tutorial
    if django.VERSION >= (6, 0) or not name.endswith("django-tasks.md")
]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", PAGES)
def test_samples(name: str, redis_server, tmp_path: Path) -> None:
    __tracebackhide__ = True
    redis_server.flushdb()
    with ExitStack() as stack:
        page = Page(name, tmp_path, stack)
        stack.enter_context(project.started(page))
        app.set_current()
        stack.callback(app.set_current)  # a page may set its own
        stack.callback(page.namespace.clear)
        stack.callback(page.tests.clear)
        for sample in samples_of(name):
            try:
                languages.run(page, sample)
            except BaseException as error:
                error.add_note(f"in the sample at {sample.id}")
                redis_server.flushdb()  # threads of the page may wait for its locks
                raise
        page.check_all_replaced()
