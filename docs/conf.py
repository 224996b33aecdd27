import re
from pathlib import Path

import django
from django.conf import settings

PACKAGE = Path(__file__).resolve().parent.parent / "django_redislock"

project = "django-redislock"
copyright = "2026, The django-redislock contributors"
version = release = re.search(
    r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.MULTILINE
)[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "evidence/results",
    "project",
]
myst_heading_anchors = 3

# The API is read from the package itself, which needs its apps to be there.
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django_redislock",
    ]
)
django.setup()
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "code"

nitpick_ignore_regex = [
    # Names of other projects are not linked, because finding them needs the network.
    (r"py:.*", r"(celery|collections|datetime|django|models|prometheus_client|redis)\..*"),
    # The exceptions in "Raises" sections of docstrings.
    (r"py:exc", r"\w+"),
    (r"py:class", r"django_redislock\.models\.ActiveLock"),
    # Type variables and aliases, which autodoc knows only by their names.
    (r"py:class", r"([\w.]+\.)?[FMPQRSTV]"),
    (r"py:obj", r"typing\.~[PQ]"),
    (r"py:class", r"Seconds"),
    (r"py:class", r"django_redislock\.fencing\.HeldLock"),
    (r"py:class", r"django_redislock\.lock_types\.options\.MoreOptions"),
    # A page names these together, without their docstrings.
    (r"py:class", r"django_redislock\.lock_types\.(composite|mutex)\.\w+"),
]

html_theme = "furo"
html_title = f"django-redislock {version}"

OUTSIDE = re.compile(
    r"\]\(([\w./-]*(?:\bresults/\w+|project/[\w-]+|CHANGELOG|CONTRIBUTING|SECURITY)\.md)(#[\w-]+)?\)"
)
"""A link to a file of the repository that is not a page of the site."""


def offer_files(app, docname, source):
    """Offer such a file as a download."""
    source[0] = OUTSIDE.sub(r"](path:\1)", source[0])


def setup(app):
    app.connect("source-read", offer_files)
