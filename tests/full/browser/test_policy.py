"""The test project sends a strict Content-Security-Policy, and no page breaks it.

The fixture `tab` fails each browser test in which the browser reports a breach of the policy.
"""

from .browser import Tab
from .pages import LIST


def test_a_breach_is_noticed(tab: Tab, viewer) -> None:
    tab.open(LIST)
    tab.expect_complaint("Content Security Policy")
    tab.script("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">red</p>')")
