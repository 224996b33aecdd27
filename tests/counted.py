"""A pytest plugin that loses no test, or fails the run.

A process of pytest-xdist that ends early, or a plugin that swallows a test, would otherwise look
like success.
"""

import pytest


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
