"""The gallery as a process, and what there is of it."""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.tools import ROOT

MARK = "GALLERY_TEST_MARK"
LONGEST = 200

GALLERY = [sys.executable, str(ROOT / "testproject" / "manage.py"), "gallery"]


def environment(folder: Path) -> dict[str, str]:
    """With a mark that each of its descendants carries. The folder is for what is temporary."""
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "TMPDIR": str(folder),
        MARK: uuid.uuid4().hex,
    }


def alive(environment: Mapping[str, str]) -> list[psutil.Process]:
    """The processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == environment[MARK]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def run(
    command: list[str], environment: Mapping[str, str], folder: Path = ROOT
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
