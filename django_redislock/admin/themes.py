"""The theme of the admin, for the few places where the themes differ."""

from django.apps import apps

THEMES = ("unfold", "jazzmin", "grappelli")
"""The apps of other themes than Django's own, under which the pages are tested."""


def theme() -> str:
    """Return the theme, ``"django"`` for Django's own or an unknown one."""
    return next(filter(apps.is_installed, THEMES), "django")
