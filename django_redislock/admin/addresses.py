"""The addresses of the pages: a lock's name is its primary key, and untrusted text."""

from django.contrib.admin.utils import quote, unquote


def url_name(page: str) -> str:
    return f"admin:django_redislock_activelock_{page}"


def quote_name(name: str) -> str:
    """Return `name` as part of a URL; a browser would take dots alone for a way up."""
    return quote(name) if name.strip(".") else name.replace(".", "_2E")


def unquote_name(text: str) -> str:
    # `quote` writes an underscore as _5F, so this one is always from `quote_name`.
    return unquote(text.replace("_2E", "."))
