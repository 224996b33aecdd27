"""Who reads a page from its top, and tries each sample."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import redis
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.servers import Missing
from tests.tools import wait_for_none_left

from . import languages, project
from .page import Page
from .samples import Sample, samples_of


class Reader:
    """One page is open at a time. A sample that is not the next one is come to from the top.

    Raises Missing for what a page has behind a server that is not on this machine.
    """

    def __init__(
        self,
        server: redis.Redis,
        database: Callable[[], AbstractContextManager[None]],
        new_folder: Callable[[str], Path],
    ) -> None:
        self._server = server
        self._database = database
        self._new_folder = new_folder
        self._page: Page | None = None
        self._stack = ExitStack()
        self._read: list[Sample] = []
        self._missing: Missing | None = None

    def read(self, sample: Sample) -> None:
        __tracebackhide__ = True
        there = samples_of(sample.page)
        before = there[: there.index(sample)]
        if self._page is None or self._read != before:
            self._open(sample.page)
            for each in before:
                self._try(each)
        try:
            self._try(sample)
        finally:
            if sample == there[-1]:
                self.close()

    def close(self) -> None:
        """End the page. AssertionError if it leaves a lock behind."""
        if page := self._page:
            self._page = None
            self._stack.close()
            left = wait_for_none_left(self._server)
            self._server.flushdb()
            assert not left, f"{page.name} leaves behind: {', '.join(left)}"

    def _try(self, sample: Sample) -> None:
        __tracebackhide__ = True
        self._read.append(sample)
        if self._missing:
            raise self._missing
        try:
            languages.run(self._page, sample)
        except Missing as missing:
            self._missing = missing
            raise

    def _open(self, name: str) -> None:
        """A page has an empty Redis, an empty database and a project of its own."""
        from testproject.celery import app

        self.close()
        self._server.flushdb()
        self._read, self._missing = [], None
        self._page = page = Page(name, self._new_folder("page"), self._stack)
        enter, after = self._stack.enter_context, self._stack.callback
        enter(project.started(page))
        enter(self._database())
        after(call_command, "flush", verbosity=0, interactive=False)
        page.queries = enter(CaptureQueriesContext(connection))
        app.set_current()
        after(app.set_current)  # a page's own may have taken its place
        after(page.close)
