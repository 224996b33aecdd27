"""A pytest plugin: a server for each test process, before Django reads its settings: an embedded
Valkey, or what the environment variable ``TESTS_SERVER`` names of `tests.servers.MAKES`.

It also makes a skipped test a failure where the environment variable ``CI`` is set: there
nothing is missing that would excuse it.
"""

import contextlib
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from django_redislock.testing import EmbeddedServer

from .programs import Missing
from .servers import Node

_resources = contextlib.ExitStack()

# A shell without job control has what it starts in the background ignore them, and so would all
# that the tests start, and interrupt.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    # A wrapper runs before pytest-django's hook of this name, which reads the settings.
    if not _hands_out_tests(early_config):
        _resources.enter_context(_environment())
    try:
        return (yield)
    except BaseException:
        _resources.close()
        raise


def pytest_unconfigure() -> None:
    _resources.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    return (yield from _skip_if_missing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    return (yield from _skip_if_missing())


def _skip_if_missing() -> Generator[None]:
    """Skip a test that needs a program which is not installed."""
    try:
        return (yield)
    except Missing as missing:
        pytest.skip(str(missing))


def _hands_out_tests(config: pytest.Config) -> bool:
    """Whether this is xdist's controller, which runs no test itself."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    return bool(config.known_args_namespace.numprocesses) and not in_worker


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, _server() as server:
        os.environ["REDIS_URL"] = server.url
        os.environ["TESTPROJECT_DB"] = str(Path(folder, "test.sqlite3"))
        yield


def _server() -> EmbeddedServer | Node:
    make = os.environ.get("TESTS_SERVER")
    return Node(make) if make else EmbeddedServer()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _forbid_skip(report)
    return report


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI"):
        return
    report.outcome = "failed"
    report.longrepr = f"Skipped, and under CI nothing may be: {report.longrepr}"
