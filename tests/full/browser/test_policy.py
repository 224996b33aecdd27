"""The test project sends a strict Content-Security-Policy, and no page breaks it.

The fixture `tab` fails each browser test in which the browser reports a breach of the policy.
"""

from .browser import Tab
from .pages import LIST, ask_to_release, path_of


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
