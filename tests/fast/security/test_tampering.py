"""The admin answers any request, and releases only holders that the user has seen."""

import json
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from hypothesis import example, given
from hypothesis import strategies as st

from tests.pages import DASHBOARD, LIST, RELEASE

from .forging import fuzzed, json_values, texts
from .looking import page_of

pytestmark = pytest.mark.django_db

HELD = "held"
CONFIRMED = {"confirmed": "yes"}

PARAMETERS = ["q", "p", "o", "e", "all", "state", "kind", "task", "host"]
PARAMETERS += ["using", "columns", "minutes", "id__exact", "_changelist_filters", "_popup"]

VALUES = ["", "0", "-1", "1.-2.3", "nan", "9" * 30, "x" * 3000, "../..", "*", "%25", "nowhere"]
VALUES += ["\x00", "\r\nX-Injected: 1", "\u202e", "\ud800"]


def whole(text):
    """Return the text as a browser can send it, without lone surrogates."""
    return text.encode(errors="replace").decode()


values = (st.sampled_from(VALUES) | texts).map(whole)
queries = st.dictionaries(st.sampled_from(PARAMETERS) | texts.map(whole), values, max_size=4)
names = values.map(lambda name: f"{LIST}{quote(name, safe='')}/")
addresses = st.sampled_from([LIST, DASHBOARD, page_of(HELD), RELEASE]) | st.tuples(
    names, st.sampled_from(["change", "history", "delete", ""])
).map("".join)


@pytest.fixture
def lock(hold):
    return hold(HELD)


@fuzzed(16)
@given(queries, addresses)
@example({"o": "1." * 500}, LIST)
@example({"p": "9" * 400}, LIST)
@example({"columns": "\r\nSet-Cookie: a=b"}, LIST)
@example({"using": "nowhere"}, DASHBOARD)
def test_addresses(lock, operator, query, address):
    response = operator.get(address, query)

    assert response.status_code in (200, 301, 302, 400, 403, 404), query
    assert "X-Injected" not in response.headers
    if response.status_code in (301, 302):
        assert response.url.startswith("/admin/")
        assert response.url.isprintable()
    assert lock.owned()
    assert not LogEntry.objects.exists()


def test_forms(lock, operator):
    def row(*cells):
        return json.dumps([cells])

    fence = lock.fence_token
    forms = ["[" * 100_000, row(HELD, 1e400), f'[["{HELD}", {"9" * 5000}]]', row(HELD, fence + 1)]
    forms += [
        row(HELD, fence, "nowhere"),
        row("other", fence),
        row([HELD], fence),
        row(HELD),
        "",
        "5",
    ]

    @fuzzed(8)
    @given(st.sampled_from(forms) | json_values.map(json.dumps) | texts.map(whole))
    def send(seen):
        for more in ({}, CONFIRMED, CONFIRMED | {"part_of": "5"}):
            assert operator.post(RELEASE, {"seen": seen, **more}).status_code in (200, 302, 400)
        action = {"action": "release_selected", "_selected_action": seen}
        assert operator.post(LIST, action).status_code in (200, 302, 400)
        assert lock.owned(), "a user released a holder without seeing it"

    send()
    assert not LogEntry.objects.exists()
