"""Find the processes of a program of the test project."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil

MARK = "TEST_MARK"


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables with a mark that each descendant of a process inherits.

    Temporary files are made in `folder`.
    """
    settings = {"DJANGO_SETTINGS_MODULE": "testproject.settings", "TMPDIR": str(folder)}
    return os.environ | settings | {MARK: uuid.uuid4().hex}


def alive(environment: Mapping[str, str]) -> list[psutil.Process]:
    """Return the processes that have the mark of `environment`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == environment[MARK]:
                found.append(process)
        except psutil.Error:
            continue
    return found
