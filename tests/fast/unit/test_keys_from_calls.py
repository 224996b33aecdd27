"""`unique_on` and `key`: which calls share a lock, and what it is called."""

import json
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_redislock.celery import single_instance
from django_redislock.tasks.key import text_of
from django_redislock.tasks.options import Options
from django_redislock.tasks.single import Single, TaskCall

Colour = Enum("Colour", {"RED": 1})


class Proxy(Group):
    class Meta:
        app_label = "tests"
        proxy = True


def sync(account_id, full=False, *, day=None): ...


def anything(first, *args, **kwargs): ...


def name_of(function, *args, unique_on=None, key=None, **kwargs):
    single = Single(Options(unique_on=unique_on, key=key), function)
    return single.name_of(TaskCall(single, args, kwargs))


def saved(model, **fields):
    instance = model(**fields)
    instance._state.adding = False
    return instance


def test_a_name_has_the_chosen_arguments():
    assert name_of(sync, 1) == name_of(sync, 2, full=True) == f"{__name__}.sync"
    day = date(2026, 5, 1)
    name = name_of(sync, 7, day=day, unique_on=["account_id", "day"])
    assert name == f"{__name__}.sync:account_id=7,day=2026-05-01"
    name = name_of(anything, 1, 2, extra=3, unique_on="*")
    assert name.endswith('anything:first=1,args=[2],kwargs={"extra":3}')
    assert name_of(sync, 7, key="report:{account_id}:{full}") == "report:7:False"
    assert name_of(sync, 7, day=3, key=lambda a, day: f"x:{a}:{day}") == "x:7:3"


@pytest.mark.parametrize("unique_on", [["account_id", "full"], ("full", "account_id"), "*"])
def test_positional_keyword_and_default_arguments_give_one_name(unique_on):
    calls = ((7,), {}), ((7, False), {}), ((), {"full": False, "account_id": 7})
    names = {name_of(sync, *args, **kwargs, unique_on=unique_on) for args, kwargs in calls}
    assert len(names) == 1


@pytest.mark.parametrize("unknown", [["acount_id"], ["account_id", "self"], ["*"]])
def test_unknown_arguments_are_found_at_import(unknown):
    with pytest.raises(ImproperlyConfigured, match="account_id, full, day") as caught:
        single_instance(unique_on=unknown)(sync)
    assert repr(unknown[-1]) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: name_of(sync, unique_on=["account_id"]), TypeError, "account_id"),
        (lambda: name_of(sync, [1, object()], unique_on="*"), TypeError, "'account_id' .* is not"),
        (lambda: name_of(sync, {"a": sync}, unique_on="*"), TypeError, "'account_id' .* is not"),
        (lambda: name_of(sync, User(), unique_on="*"), ValueError, "'account_id' .*not saved"),
        (lambda: name_of(sync, 7, key=lambda account_id: None), TypeError, "result of key must"),
        (lambda: name_of(sync, 7, key=lambda account_id: ""), ValueError, "result of key must"),
    ],
)
def test_a_call_without_a_stable_name_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


BERLIN = timezone(timedelta(hours=2))

TEXTS = [
    (None, "null"),
    (True, "true"),
    (1, "1"),
    ("1", '"1"'),
    ('a"b\n', r'"a\"b\n"'),
    (gettext_lazy("x"), '"x"'),  # as Celery sends it
    (b"a'", '''b"a'"'''),
    (Decimal("1.50"), "Decimal(1.5)"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (datetime(2026, 5, 1, 12, tzinfo=UTC), "2026-05-01T12:00:00+00:00"),
    (datetime(2026, 5, 1, 14, tzinfo=BERLIN), "2026-05-01T12:00:00+00:00"),
    (timedelta(minutes=90), "P0DT01H30M00S"),
    (Colour.RED, "Colour.RED"),
    ([1, gettext_lazy("a")], '[1,"a"]'),
    ({3, 1}, "set(1,3)"),
    ({"b": [1], "a": None}, '{"a":null,"b":[1]}'),
    ({1: "x", None: "y"}, '{"1":"x","null":"y"}'),
    (saved(User, pk=42), "auth.user:42"),
    (saved(Proxy, pk=7), "auth.group:7"),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@pytest.mark.parametrize(("value", "text"), TEXTS, ids=str)
def test_each_type_has_a_readable_text(value, text):
    assert text_of(value) == text


def test_values_of_several_types_do_not_share_a_text():
    one = [1, 1.0, True, "1", b"1", Decimal(1), [1], {"1": 1}, {1}, saved(User, pk=1)]
    assert len(set(map(text_of, one))) == len(one)


@given(json_values)
def test_a_value_has_the_same_text_after_json(value):
    assert text_of(json.loads(json.dumps(value))) == text_of(value)


@given(st.lists(st.text(), unique=True))
def test_sets_and_dictionaries_have_no_order(values):
    one, other = dict.fromkeys(values), dict.fromkeys(reversed(values))
    assert text_of(one) == text_of(other)
    assert text_of(set(one)) == text_of(frozenset(other))
