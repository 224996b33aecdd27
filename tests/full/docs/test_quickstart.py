"""The quickstart of README.md works when a reader pastes it into a new project."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_redislock.testing import EmbeddedServer
from tests.tools import ROOT

ADDRESS = "127.0.0.1:6379"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_VARIABLES = ("DJANGO_SETTINGS_MODULE", "PYTHONPATH", "REDIS_URL")
"""Variables of these tests that a reader's environment does not have."""


class Project:
    """A new Django project in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {key: value for key, value in os.environ.items() if key not in OWN_VARIABLES}
        path = f"{Path(sys.executable).parent}:{inherited['PATH']}"
        self._environment = inherited | {"PATH": path, "PYTHONPATH": str(ROOT)}
        self.run("django-admin startproject mysite .")

    def run(self, command: str, stdin: str = "") -> str:
        """Run a shell command in the folder, and return what it printed."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def quickstart() -> Iterator[list[tuple[str, str]]]:
    """The listings of the quickstart, each with its language, and the address of a real server."""
    text = (ROOT / "README.md").read_text()
    section = text.split("## Quickstart\n")[1].split("\n## ")[0]
    with EmbeddedServer() as server:
        assert ADDRESS in section
        yield FENCE.findall(section.replace(ADDRESS, server.address))


def with_listing(code: str) -> str:
    """Return a block that lists the locks where it holds one, and that calls its task."""
    assert "..." in code
    code = code.replace("...", "call_command('locks', 'list')")
    task = re.search(r"^def (\w+)\(", code, re.MULTILINE)
    call = f"\n{task[1]}(42)\n" if task else ""
    return f"from django.core.management import call_command\n{code}{call}"


def test_a_new_project_lists_the_held_locks(
    tmp_path: Path, quickstart: list[tuple[str, str]]
) -> None:
    project = Project(tmp_path)
    printed: list[str] = []
    for language, text in quickstart:
        if "CACHES = " in text:
            with (project.folder / "mysite" / "settings.py").open("a") as settings:
                settings.write(text)
        elif language == "python":
            printed.append(project.run("python manage.py shell", with_listing(text)))
        commands = re.findall(r"^\$ (python .*)$", text, re.MULTILINE)
        printed += map(project.run, commands)

    listings = [text for text in printed if re.search(r"^NAME +STATE ", text, re.MULTILINE)]
    names = [re.findall(r"^\S*?([\w:=]+) +held ", text, re.MULTILINE) for text in listings]
    assert names == [["invoice:42"], ["sync:account_id=42"], ["invoice:42"]]
    assert any("Applying django_redislock.0001_initial... OK" in text for text in printed)
