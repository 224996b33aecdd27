"""The test project sends a strict Content-Security-Policy, and no page breaks it.

The fixture `tab` fails each browser test in which the browser reports a breach of the policy.
"""

import pytest
from django.test import Client

from .browser import Tab
from .pages import LIST, ask_to_release, path_of

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@pytest.mark.parametrize("path", ["/admin/login/", LIST])
def test_pages_are_sent_with_the_policy(client: Client, path: str, db: None) -> None:
    assert client.get(path).headers["Content-Security-Policy"] == POLICY


def test_no_page_breaks_the_policy(tab: Tab, releaser, hold) -> None:
    hold("invoice:42", metadata={"site": 3})
    for path in ("/admin/", LIST, f"{LIST}dashboard/", path_of("invoice:42")):
        tab.open(path)
        assert tab.complaints() == [], path
    ask_to_release(tab)
    assert tab.complaints() == []


def test_a_breach_is_noticed(tab: Tab, viewer) -> None:
    tab.open(LIST)
    tab.expect_complaint("Content Security Policy")
    tab.script("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">red</p>')")
