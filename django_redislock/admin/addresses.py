"""The addresses of the pages: a lock's name is its primary key, and untrusted text."""

from django.contrib.admin.utils import quote, unquote
from django.http import QueryDict
from django.urls import reverse
from django.utils.http import urlencode

from ..manager import LockManager, locks

URL_PREFIX = "django_redislock_activelock_"


def url_name(page: str) -> str:
    return f"admin:{URL_PREFIX}{page}"


def quote_name(name: str) -> str:
    """Return `name` as part of a URL; a browser would take dots alone for a way up."""
    return quote(name) if name.strip(".") else name.replace(".", "_2E")


def unquote_name(text: str) -> str:
    # `quote` writes an underscore as _5F, so this one is always from `quote_name`.
    return unquote(text.replace("_2E", "."))


def page_address(page: str, site: str, *names: str, **query: str | int) -> str:
    """Return the address of a page of the admin site of that name; empty parts of the query are
    left out."""
    address = reverse(url_name(page), args=[*map(quote_name, names)], current_app=site)
    told = {key: value for key, value in query.items() if value}
    return f"{address}?{urlencode(told)}" if told else address


def query_string(query: QueryDict | None) -> str:
    """Return what stands behind an address for it: nothing where there is none."""
    return f"?{query.urlencode()}" if query else ""


def using_of(manager: LockManager) -> str:
    """Return what stands behind ``?using=`` for it: nothing for ``REDISLOCK_CACHE``."""
    return "" if manager.alias == locks.alias else manager.alias
