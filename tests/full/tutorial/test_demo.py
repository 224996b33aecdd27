"""The demo on a terminal: its figures, its site, its exit status and its processes."""

import os
import re
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.full.gallery.running import alive, environment
from tests.tools import ROOT

from .terminal import Terminal


@pytest.mark.celery
@pytest.mark.timeout(240)
def test_the_demo_shows_its_figures_and_a_site_until_ctrl_c(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    variables.pop("DEMO_ONCE", None)
    terminal = Terminal(ROOT, variables, sys.executable, "-m", "testproject.demo")
    text = terminal.wait_for("Press Ctrl-C to exit.")
    sold = re.findall(r"(?:without a lock|with locks\.lock\(\.\.\.\)) +([\d,]+) sold", text)
    unlocked, locked = (int(each.replace(",", "")) for each in sold)
    assert unlocked > locked == 500
    assert re.search(r"an ordinary task +20 ran +0 skipped", text)
    [ran] = re.findall(r"with @single_instance +(\d+) ran +\d+ skipped +1 at once", text)
    assert 1 <= len(re.findall(r"the lock was held by task [\w-]{36}, \S+:\d+", text)) <= int(ran)
    assert "$ manage.py locks release rebuild:products --yes" in text
    [address] = re.findall(r"http://\S+", text)
    urllib.request.urlopen(address, timeout=20).close()  # noqa: S310  our own

    terminal.type("\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]) == 0
    assert alive(variables) == []
    assert list(tmp_path.iterdir()) == []
