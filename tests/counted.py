"""A pytest plugin that loses no test, or fails the run.

A process of pytest-xdist that ends early, or a plugin that swallows a test, would otherwise look
like success. One cause is a report of a test with half a surrogate pair, which pytest-xdist cannot
send: the process ends, and the rest of its tests are lost.
"""

from collections.abc import Generator
from typing import Any

import pytest


def sendable(value: Any) -> Any:
    """Return a report without texts that have no encoding in UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {sendable(name): sendable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(sendable, value))
    return value


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    return sendable((yield))


class Counted:
    def __init__(self) -> None:
        self._collected: set[str] = set()
        self._reported: set[str] = set()
        self.missing: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reported.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.OK or session.config.option.collectonly:
            return
        self.missing = sorted(self._collected - self._reported)
        if self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.missing:
            terminalreporter.section("tests that were collected and not run", red=True)
            for each in self.missing:
                terminalreporter.line(each)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist runs only some of them
        config.pluginmanager.register(Counted())
