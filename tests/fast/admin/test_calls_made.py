"""How much of our own code one page of the list runs."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import django_redislock
from tests.pages import LIST

pytestmark = pytest.mark.django_db

PACKAGE = Path(django_redislock.__file__).parent

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Before Python 3.12 each is a function of its own."""

MAX_CALLS = 150


def test_a_page_of_two_locks_makes_few_calls(hold, admin_client):
    hold("a1")
    hold("a2")
    admin_client.get(LIST)
    calls: Counter[str] = Counter()

    def note(frame, event, _):
        code = frame.f_code
        is_ours = Path(code.co_filename).is_relative_to(PACKAGE)
        if event == "call" and is_ours and code.co_name not in COMPREHENSIONS:
            calls[code.co_qualname] += 1

    sys.setprofile(note)
    try:
        page = admin_client.get(LIST)
    finally:
        sys.setprofile(None)

    assert len(page.context["cl"].result_list) == 2
    assert 0 < calls.total() <= MAX_CALLS, calls.most_common()
