"""A strict Content-Security-Policy, on our pages and on those of Django's admin around them."""

import pytest
from django.test import Client

from .browser import Tab
from .pages import LIST, path_of

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

OF_DJANGO = [
    "",
    "auth/group/add/",
    "auth/user/",
    "auth/user/?q=ada",
    "auth/user/add/",
    "auth/user/{id}/change/",
    "auth/user/{id}/delete/",
    "auth/user/{id}/history/",
    "auth/user/{id}/password/",
    "password_change/",
]


@pytest.mark.parametrize("path", ["/admin/login/", LIST])
def test_pages_say_the_policy(client: Client, path: str, db: None) -> None:
    assert client.get(path).headers["Content-Security-Policy"] == POLICY


def test_our_pages_keep_to_it(tab: Tab, releaser, hold) -> None:
    hold("invoice:42", metadata={"site": 3})
    for path in (LIST, path_of("invoice:42")):
        tab.open(path)
        assert tab.complaints() == [], path
    tab.follow(tab.get("button", "Release…"))
    tab.get("button", "Yes, I\N{RIGHT SINGLE QUOTATION MARK}m sure")


@pytest.mark.parametrize("path", OF_DJANGO)
def test_djangos_own_pages_keep_to_it(tab: Tab, log_in, path: str) -> None:
    user = log_in(superuser=True)
    tab.open("/admin/" + path.format(id=user.pk))
    tab.get("button", "Log out")


def test_djangos_login_keeps_to_it(tab: Tab) -> None:
    tab.open("/admin/login/")
    tab.get("button", "Log in")
