"""The tutorial works from the start to the end."""

import os
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from testproject.stage import free_port
from tests.tools import ROOT

from .terminal import Terminal

[PAGE] = ROOT.glob("docs/**/tutorial.md")

LISTING = re.compile(
    r"^```(?:\{code-block\} )?(\w+)\n(?::caption: ([^\n]+)\n\n)?(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

FIRST = "First terminal"

OF_THE_TESTS = ("CELERY_", "COV", "DJANGO_", "PYTEST", "PYTHON", "REDIS", "TESTPROJECT_")
"""Variables of the tests' environment that a reader does not have."""

RELEASE = """
from django_redislock import locks
locks.force_release("shop.tasks.make_report:account_id=7", by="admin")
"""
"""What the reader does with the buttons of the admin, which have tests of their own."""


@pytest.mark.celery
@pytest.mark.timeout(300)
def test_each_step_has_the_output_of_the_page(tmp_path: Path) -> None:
    text = re.sub(r"\$ pip install .*\n\.\.\.\n", "", PAGE.read_text())
    text = text.replace("python3 -m venv .venv", f"ln -s {sys.prefix} .venv")
    for port in ("6379", "8000"):
        text = text.replace(port, str(free_port()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TESTS)}
    environment = kept | {
        "HOME": str(tmp_path),
        "HISTFILE": os.devnull,
        "PS1": "$ ",
        "PYTHON_BASIC_REPL": "1",
        "TERM": "dumb",
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
    }
    with ExitStack() as stack:
        terminals: dict[str, Terminal] = {}
        for language, caption, code in LISTING.findall(text):
            if language == "console":
                name = caption or FIRST
                if name not in terminals:
                    shell = "bash", "--norc", "--noprofile", "--noediting"
                    terminals[name] = Terminal(tmp_path, environment, *shell)
                    stack.callback(terminals[name].close)
                terminals[name].follow(code)
                continue
            folder = terminals[FIRST].folder
            if language == "python":
                file, _, at_its_end = caption.replace("\\", "").partition(", ")
                with folder.joinpath(file).open("a" if at_its_end else "w") as stream:
                    stream.write(code)
            else:
                [address] = re.findall(r"<(http://127\S+)>", text)
                urllib.request.urlopen(address, timeout=20).close()  # noqa: S310  our own
                manage = [".venv/bin/python", "manage.py", "shell", "-c", RELEASE]
                subprocess.run(manage, cwd=folder, env=environment, check=True)
        assert len(terminals) == 4
