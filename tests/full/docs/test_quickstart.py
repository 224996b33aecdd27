"""The quickstart of README.md works when a reader pastes it into a new project."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from django_redislock.testing import EmbeddedServer
from tests.tools import ROOT
from tools.release.installing import Place

ADDRESS = "127.0.0.1:6379"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Project(Place):
    """A new Django project in its own folder, with the packages of these tests."""

    def shell(self, command: str, stdin: str = "") -> str:
        """Run a shell command in the folder, and return what it printed."""
        path = f"PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}"
        return self.run("bash", "-c", f"export {path}\n{command}", stdin=stdin)


@pytest.fixture
def quickstart() -> Iterator[list[tuple[str, str]]]:
    """Language and code of each listing of the quickstart, with the address of a real server."""
    text = (ROOT / "README.md").read_text()
    section = text.split("## Quickstart\n")[1].split("\n## ")[0]
    with EmbeddedServer() as server:
        assert ADDRESS in section
        yield FENCE.findall(section.replace(ADDRESS, urlsplit(server.url).netloc))


def test_a_new_project_lists_the_held_locks(
    tmp_path: Path, quickstart: list[tuple[str, str]]
) -> None:
    project = Project(tmp_path)
    project.shell("django-admin startproject mysite .")
    printed: list[str] = []
    for _, text in quickstart:
        if "CACHES = " in text:
            with (project.folder / "mysite" / "settings.py").open("a") as settings:
                settings.write(text)
        commands = re.findall(r"^\$ (python .*)$", text, re.MULTILINE)
        printed += map(project.shell, commands)

    listings = [text for text in printed if re.search(r"^NAME +STATE ", text, re.MULTILINE)]
    names = [re.findall(r"^\S*?([\w:=]+) +held ", text, re.MULTILINE) for text in listings]
    assert names == [["invoice:42"]]
    assert any("Applying django_redislock.0001_initial... OK" in text for text in printed)
