"""Run a sample by its language. A sample in a language that is not in `RUNNERS` fails."""

import ast
import configparser
import contextlib
import copy
import importlib
import inspect
import io
import re
from pathlib import PurePath
from typing import Any

from django.conf import settings

from tests.tools import ROOT

from . import console
from .page import Page
from .printed import assert_same
from .samples import Sample
from .settling import augmented, names_of, settle

FILE = re.compile(r"# ([\w/]+)(?<![/ ]settings)\.py\n")
"""The first line of a sample that is a file of the project."""

INI_FILE = re.compile(r"# (\w+\.ini)\n")


def run(page: Page, sample: Sample) -> None:
    __tracebackhide__ = True
    runner = RUNNERS.get(sample.language)
    assert runner, f"nothing runs {sample.language or 'a sample that names no language'}"
    runner(page, sample)


def _python(page: Page, sample: Sample) -> None:
    """Import a sample that begins with a file name. Run others in the page's namespace.

    Hidden code sees the names of the page, but the page does not see the names of hidden code.
    """
    __tracebackhide__ = True
    code = page.real(sample.text)
    namespace = page.tests if sample.is_hidden else page.namespace
    for name in augmented(code) - namespace.keys():
        # The reader adds the sample to the settings.
        namespace[name] = copy.copy(getattr(settings, name))
    page.tests |= page.namespace
    file = FILE.match(code)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if file:
            _import(page, file[1], code)
        else:
            _execute(page, sample, code, namespace)
    page.printed = printed.getvalue() or page.printed
    if (names := names_of(code)) and not file:
        settle(page, code, {name: namespace[name] for name in names})


def _execute(page: Page, sample: Sample, code: str, namespace: dict[str, Any]) -> None:
    __tracebackhide__ = True
    compiled = compile(
        "\n" * sample.line + code,  # so that a traceback has the page's line numbers
        ROOT / sample.page,
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    namespace["__name__"] = page.module or f"{PurePath(sample.page).stem}_{sample.line}"
    result = eval(compiled, namespace)  # noqa: S307  our own page
    if inspect.iscoroutine(result):
        page.loop.run(result)


def _import(page: Page, file: str, code: str) -> None:
    page.write(f"{file}.py", "w", code)
    if not page.imports_files:
        return
    module = importlib.import_module(page.new_module(file))
    page.namespace |= {name: vars(module)[name] for name in dir(module) if name[:2] != "__"}


def _console(page: Page, sample: Sample) -> None:
    __tracebackhide__ = True
    console.run(page, sample.text)


def _text(page: Page, sample: Sample) -> None:
    """Run Redis commands, or compare the text with the last output."""
    __tracebackhide__ = True
    if sample.text.startswith("ACL "):
        console.ask(page, sample.text.split())
    elif page.printed:
        assert_same(page.printed, sample.text)
    page.printed = ""


def _ini(page: Page, sample: Sample) -> None:
    """Parse the sample, and write it if it begins with a file name."""
    configparser.ConfigParser(interpolation=None).read_string(sample.text)
    if name := INI_FILE.match(sample.text):
        page.write(name[1], "w", sample.text)


RUNNERS = {
    "console": _console,
    "ini": _ini,
    "python": _python,
    "text": _text,
}
