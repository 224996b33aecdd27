"""The admin answers any request, and releases only holders that the user has seen."""

import json
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from hypothesis import example, given
from hypothesis import strategies as st

from tests.pages import DASHBOARD, LIST, RELEASE

from .forging import json_values, texts
from .fuzzing import fuzzed
from .looking import page_of

pytestmark = pytest.mark.django_db

HELD = "held"
CONFIRMED = {"confirmed": "yes"}

PARAMETERS = ["q", "p", "o", "e", "all", "state", "kind", "task", "host"]
PARAMETERS += ["using", "columns", "minutes", "id__exact", "_changelist_filters", "_popup"]

VALUES = ["", "0", "-1", "1.-2.3", "1e9", "nan", "9" * 30, "x" * 3000, "../..", "*", "%25"]
VALUES += ["default", "django_redis", "nowhere", "stale", "name"]
VALUES += ["\x00", "\r\nX-Injected: 1", "\u202e", "\ud800"]

values = st.sampled_from(VALUES) | texts
queries = st.dictionaries(st.sampled_from(PARAMETERS) | texts, values, max_size=4)


@pytest.fixture
def lock(hold):
    return hold(HELD)


def sendable(fields):
    """Return the fields as a browser can send them, without lone surrogates."""
    return {_whole(name): _whole(value) for name, value in fields.items()}


def _whole(text):
    return text.encode(errors="replace").decode()


@fuzzed(8)
@given(queries, st.sampled_from([LIST, DASHBOARD, page_of(HELD), RELEASE]))
@example({"o": "1." * 500}, LIST)
@example({"p": "9" * 400}, LIST)
@example({"columns": "\r\nSet-Cookie: a=b"}, LIST)
@example({"using": "nowhere"}, DASHBOARD)
def test_addresses(lock, operator, query, address):
    response = operator.get(address, sendable(query))

    assert response.status_code in (200, 302, 400, 404), query
    assert "X-Injected" not in response.headers
    if response.status_code == 302:
        assert response.url.startswith(LIST)
        assert response.url.isprintable()
    assert lock.owned()
    assert not LogEntry.objects.exists()


@fuzzed(8)
@given(values, st.sampled_from(["change", "history", "delete", ""]))
def test_names_in_addresses(lock, operator, name, page):
    response = operator.get(f"{LIST}{quote(_whole(name), safe='')}/{page}")

    assert response.status_code in (200, 301, 302, 400, 403, 404), name
    if response.status_code in (301, 302):
        assert response.url.startswith(("/admin/", "/admin?"))
    assert lock.owned()


def seen_like(fence_token):
    """Return a strategy for invalid values of the form field `seen`."""
    right = [HELD, fence_token, ""]
    change = st.tuples(st.integers(0, 3), json_values | st.sampled_from(VALUES))

    def spoil(changes):
        row = list(right)
        for place, value in changes:
            row[place : place + 1] = [value]
        return [row]

    return st.lists(change, min_size=1, max_size=2).map(spoil) | json_values


def test_forms(lock, operator):
    right = seen_like(lock.fence_token)

    @fuzzed(8)
    @given(
        right.map(json.dumps) | texts.map(_whole),
        st.sampled_from([{}, CONFIRMED, CONFIRMED | {"part_of": "5"}, {"all": "yes"}]),
        st.sampled_from(["", "-1", "9" * 30, "x", "1"]),
    )
    @example("[" * 100_000, CONFIRMED, "1")
    @example(json.dumps([[HELD, 1e400, ""]]), CONFIRMED, "1")
    @example(f'[["{HELD}", {"9" * 5000}]]', CONFIRMED, "1")
    @example(json.dumps([[HELD, lock.fence_token + 1]]), CONFIRMED, "1")
    @example(json.dumps([[HELD, lock.fence_token, "nowhere"]]), CONFIRMED, "1")
    @example(json.dumps([["other", lock.fence_token]]), CONFIRMED, "1")
    def send(seen, more, told):
        if names_the_holder(seen, lock):
            return
        form = {"seen": seen, "told": told, **more}
        answers = [
            operator.post(RELEASE, form),
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
