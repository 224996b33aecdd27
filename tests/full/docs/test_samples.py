"""The code samples of each page run, in order."""

import builtins
import symtable
from collections.abc import Iterator
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


@pytest.mark.parametrize("name", [name for name in pages() if samples_of(name)])
def test_the_visible_code_of_a_page_uses_no_name_that_only_hidden_code_has(name: str) -> None:
    """A function that is never called uses names, too. A sample that is a file stands alone."""
    samples = [each for each in samples_of(name) if each.language == "python"]
    files = [each.text for each in samples if languages.FILE.match(each.text)]
    visible = [each.text for each in samples if not each.is_hidden]
    for code in (*files, "\n".join(visible)):
        table = symtable.symtable(code, name, "exec")
        known = {symbol.get_name() for symbol in table.get_symbols() if _is_bound(symbol)}
        unknown = set(_globals(table)) - known - set(dir(builtins)) - {"__name__", "__file__"}
        assert not unknown, f"{', '.join(sorted(unknown))} is not defined on the page"


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that the code looks up in its module."""
    for symbol in table.get_symbols():
        is_of_module = table.get_type() == "module" or symbol.is_global()
        if symbol.is_referenced() and is_of_module:
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _globals(inner)
