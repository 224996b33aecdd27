"""The addresses of the pages: a lock's name is its primary key, and untrusted text."""

from operator import itemgetter

from django.contrib.admin.utils import quote, unquote
from django.http import QueryDict
from django.urls import reverse
from django.utils.http import urlencode

from ..manager import LockManager, locks

URL_PREFIX = "django_redislock_activelock_"


def quote_name(name: str) -> str:
    """Return `name` as part of a URL. A browser would resolve a part of dots alone."""
    return quote(name) if name.strip(".") else name.replace(".", "_2E")


def unquote_name(text: str) -> str:
    # `quote` writes an underscore as _5F, so this one is always from `quote_name`.
    return unquote(text.replace("_2E", "."))


def page_address(page: str, site: str, *names: str, **query: str | int) -> str:
    """Return the address of a page of the admin site of that name; empty parts of the query are
    left out."""
    view = f"admin:{URL_PREFIX}{page}"
    address = reverse(view, args=[*map(quote_name, names)], current_app=site)
    parts = [*filter(itemgetter(1), query.items())]
    return f"{address}?{urlencode(parts)}" if parts else address


def query_string(query: QueryDict | None) -> str:
    """Return the query with its question mark, or an empty string without a query."""
    return f"?{query.urlencode()}" if query else ""


def using_of(manager: LockManager) -> str:
    """Return the ``using`` of a URL for a manager, an empty string for ``REDISLOCK_CACHE``."""
    return "" if manager.alias == locks.alias else manager.alias
