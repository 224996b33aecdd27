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


def seen_like(fence_token):
    """Return a strategy for invalid values of the form field `seen`."""
    right = [HELD, fence_token]
    change = st.tuples(st.integers(0, 2), json_values | st.sampled_from(VALUES))

    def spoil(changes):
        row = list(right)
        for place, value in changes:
            row[place : place + 1] = [value]
        return [row]

    return st.lists(change, min_size=1, max_size=2).map(spoil) | json_values


def test_forms(lock, operator):
    @fuzzed(8)
    @given(
        seen_like(lock.fence_token).map(json.dumps) | texts.map(whole),
        st.sampled_from([{}, CONFIRMED, CONFIRMED | {"part_of": "5"}, {"all": "yes"}]),
    )
    @example("[" * 100_000, CONFIRMED)
    @example(json.dumps([[HELD, 1e400]]), CONFIRMED)
    @example(f'[["{HELD}", {"9" * 5000}]]', CONFIRMED)
    @example(json.dumps([[HELD, lock.fence_token + 1]]), CONFIRMED)
    @example(json.dumps([[HELD, lock.fence_token, "nowhere"]]), CONFIRMED)
    @example(json.dumps([["other", lock.fence_token]]), CONFIRMED)
    def send(seen, more):
        if names_the_holder(seen, lock):
            return
        answers = [
            operator.post(RELEASE, {"seen": seen, **more}),
            operator.post(LIST, {"action": "release_selected", "_selected_action": seen}),
        ]
        assert {answer.status_code for answer in answers} <= {200, 302, 400}
        assert lock.owned(), "a user released a holder without seeing it"

    send()
    assert not LogEntry.objects.exists()


def names_the_holder(seen, lock):
    """Return whether the form field names the holder."""
    try:
        return any(
            isinstance(row, list) and row[0] == HELD and int(row[1]) == lock.fence_token
            for row in json.loads(seen)
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return False
