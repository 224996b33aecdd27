"""A page whose samples run."""

import asyncio
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.test import override_settings

from django_redislock.testing import EmbeddedServer

T = TypeVar("T")

LOCAL = re.compile(r"(?<=redis://)(localhost|127\.0\.0\.1)(:6379)?(?=[/\"' ]|$)", re.MULTILINE)
"""The default address of Redis, which the tests replace."""


class Page:
    """The state that the samples of a page share. In hidden code, its name is `page`.

    Attributes:
        instead: Replacements in samples, such as the address of a running server for the address
            in the sample. Each must be used at least once.
        imports_files: Whether to import a sample that is a file. Otherwise it is only written,
            for a program that the hidden code runs.
        module: The module name of the samples. If None, each sample is its own module.
        printed: The last output, which a sample of text must match.
        namespace: The names of the visible samples.
        tests: The names of the hidden code, and those of the visible samples.
    """

    def __init__(self, name: str, folder: Path, stack: ExitStack) -> None:
        self.name = name
        self.folder = folder
        self.instead: dict[str, str] = {}
        self.imports_files = True
        self.module: str | None = None
        self.printed = ""
        self.namespace: dict[str, Any] = {}
        self.tests: dict[str, Any] = {"page": self}
        self._found: set[str] = set()
        self._stack = stack

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context manager that is exited at the end of the page."""
        return self._stack.enter_context(context)

    def replace(self, function: Callable[..., Any]) -> None:
        """Let visible samples call another function than the one of this name that they define."""
        assert function.__name__ in self.namespace, f"no sample defines {function.__name__}"
        self.namespace[function.__name__] = function

    @cached_property
    def loop(self) -> asyncio.Runner:
        return self.enter(asyncio.Runner())

    @cached_property
    def server(self) -> EmbeddedServer:
        """A server that only this page uses."""
        return self.enter(EmbeddedServer())

    @contextlib.contextmanager
    def worker(self) -> Iterator[Callable[..., Any]]:
        """Run a Celery worker in this process, because it needs the tasks of the samples. Yield a
        function that sends a task and returns its outcome."""
        from celery import current_app
        from celery.contrib.testing.worker import start_worker

        from tests.celery_worker import outcome
        from tests.tools import same_logging

        app = current_app._get_current_object()
        with (
            same_logging(),
            start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20),
        ):
            yield lambda task, *arguments: outcome(task.delay(*arguments))

    def app(self, name: str) -> None:
        """Add an app to the project, for a sample that is its `models.py`."""
        self.write(f"{name}/__init__.py", "w", "")
        self.enter(override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, name]))
        self._stack.callback(apps.all_models.pop, name, None)

    def write(self, name: str, mode: str, text: str) -> None:
        """Write a file of the project."""
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        with file.open(mode) as stream:
            stream.write(text.lstrip())

    def new_module(self, file: str) -> str:
        """Return the module name of a file that was written, and forget an earlier import."""
        from celery import current_app

        name = file.replace("/", ".")
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        for task in [task for task in current_app.tasks if task.startswith(f"{name}.")]:
            current_app.tasks.pop(task)
        return name

    def real(self, code: str) -> str:
        """Return `code` with the addresses of running servers."""
        for name, there in self.instead.items():
            if name in code:
                self._found.add(name)
                code = code.replace(name, there)
        return LOCAL.sub(urlsplit(os.environ["REDIS_URL"]).netloc, code)

    def check_all_replaced(self) -> None:
        unknown = self.instead.keys() - self._found
        assert not unknown, f"{self.name} does not name {', '.join(sorted(unknown))}"
