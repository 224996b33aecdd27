#!/usr/bin/env python
"""Django's manage.py for the site: ``python testproject/manage.py locks list``."""

import os
import sys
from pathlib import Path


def main() -> None:
    # As a script this folder would be first on the path, where celery.py hides Celery.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
