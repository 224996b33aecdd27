"""In the gallery, each common algorithm fails and ours does not. The docs show such a run."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from testproject.gallery import report
from testproject.gallery.exhibits import ALL
from tests.tools import ROOT, wait_until

from .running import alive, environment

EMPTY = f"before\n\n{report.BEGIN}\n\n{report.END}\n\nafter\n"
GALLERY = [sys.executable, ROOT / "testproject" / "manage.py", "gallery"]
TRIALS = 2
LONGEST = 200


@pytest.mark.timeout(LONGEST + 10)
def test_common_algorithms_fail_and_ours_do_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(EMPTY)
    # The names of pytest's folders are too long for a Unix socket.
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(Path(folder))
        done = subprocess.run(
            [*GALLERY, "--trials", str(TRIALS), "--json", "--write", page],
            cwd=tmp_path,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: not alive(variables))
        assert list(Path(folder).iterdir()) == []

    exhibits = {each["name"]: each for each in json.loads(done.stdout)["exhibits"]}
    assert exhibits.keys() == {exhibit.name for exhibit in ALL}
    for name, each in exhibits.items():
        failed = each["taught"]["failed"], each["ours"]["failed"]
        assert (each["trials"], *failed, each["as_expected"]) == (TRIALS, TRIALS, 0, True), name
    before, table, after = page.read_text().partition("| ")
    assert before == f"before\n\n{report.BEGIN}\n\n"
    assert after.endswith(f"\n\n{report.END}\n\nafter\n")
    assert (table + after).count(f" | {TRIALS} of {TRIALS} | 0 of {TRIALS} | ") == len(ALL)
