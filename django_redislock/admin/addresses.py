"""The addresses of the pages: a lock's name is its primary key, and untrusted text."""

from operator import itemgetter

from django.contrib.admin.utils import quote, unquote
from django.urls import reverse
from django.utils.http import urlencode

URL_PREFIX = "django_redislock_activelock_"


def page_address(page: str, site: str, name: str = "", /, **query: str | int) -> str:
    """Return the address of a page, such as ``"change"``, on the admin site of that name. Empty
    parts of the query are left out."""
    # A browser would resolve a part of dots alone.
    quoted = quote(name) if name.strip(".") else name.replace(".", "_2E")
    args = [quoted] if name else []
    address = reverse(f"admin:{URL_PREFIX}{page}", args=args, current_app=site)
    parts = [*filter(itemgetter(1), query.items())]
    return f"{address}?{urlencode(parts)}" if parts else address


def unquote_name(text: str) -> str:
    # `quote` writes an underscore as _5F, so this one is always from `page_address`.
    return unquote(text.replace("_2E", "."))
