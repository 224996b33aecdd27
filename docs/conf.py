import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "django_redislock"

project = "django-redislock"
copyright = "2026, The django-redislock contributors"
version = release = re.search(
    r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.MULTILINE
)[1]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"django-redislock {version}"
