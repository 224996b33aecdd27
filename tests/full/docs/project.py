"""The Django project of a page: like `startproject mysite`, with the tests' settings."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools import ROOT

from .page import Page

FILES = {
    "manage.py": """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "mysite/__init__.py": """
from .celery import app
""",
    "mysite/settings.py": """
from tests.settings import *
""",
    "mysite/celery.py": """
from pathlib import Path
from celery import Celery

app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks([file.parent.name for file in Path().glob("*/tasks.py")])
""",
}


@contextmanager
def started(page: Page) -> Iterator[None]:
    """Create the project, and add it to the import path."""
    for name, text in FILES.items():
        page.write(name, "w", text)
    known = set(sys.modules)
    sys.path.insert(0, str(page.folder))
    yield
    sys.path.remove(str(page.folder))
    for name in set(sys.modules) - known:
        if str(page.folder) in str(getattr(sys.modules[name], "__spec__", None)):
            del sys.modules[name]


def environment() -> dict[str, str]:
    """Return the environment variables of programs in the project's folder."""
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "mysite.settings",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:.",
        "NO_COLOR": "1",
    }
