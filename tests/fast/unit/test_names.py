import re
import unicodedata
from dataclasses import dataclass
from inspect import signature

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from hypothesis import example, given
from hypothesis import strategies as st

from django_redislock.keys import Keys
from django_redislock.names import MAX_NAME_BYTES, Template, check_name, fit_name

any_text = st.text(alphabet=st.characters(codec=None))
escaped_text = st.text(alphabet="\\nx0\n\0", min_size=1, max_size=6)


@dataclass
class Account:
    pk: int


def report(account_id, day="today", *, full=False): ...


def anything(first, *args, **kwargs): ...


REPORT = signature(report)


def fill(text, *args, of=report, **kwargs):
    return Template(text, signature(of)).of_call(args, kwargs)


class TestCheckName:
    @given(any_text)
    @example("東" * 170)
    def test_every_name_is_one_that_utf8_and_terminals_can_take(self, text):
        fine = (
            text
            and not any(unicodedata.category(char) in ("Cc", "Cs") for char in text)
            and len(text.encode()) <= MAX_NAME_BYTES
        )
        try:
            assert check_name(text) == text
        except ValueError:
            assert not fine
        else:
            assert fine

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            (None, TypeError, "place must be a str, not None"),
            ("a\x1bb", ValueError, r"control characters, got '\\x1b'"),
            ("é" * 257, ValueError, "at most 512 bytes in UTF-8, got 514"),
        ],
    )
    def test_a_refusal_has_the_value_in_a_short_and_printable_text(self, name, error, message):
        with pytest.raises(error, match=message) as caught:
            check_name(name, "place")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


class TestFitName:
    @given(any_text.filter(bool))
    @example("é" * 1000)
    @example("\n" * 1000)
    def test_any_text_becomes_a_name(self, text):
        check_name(fit_name(text))

    @given(escaped_text, escaped_text)
    @example("a\nb", "a\\nb")
    @example("\\\n", "\\\\n")
    @example("é" * 600 + "1", "é" * 600 + "2")
    def test_texts_that_differ_have_different_names(self, one, other):
        assert (fit_name(one) == fit_name(other)) is (one == other)


class TestTemplate:
    @pytest.mark.parametrize(
        ("text", "values", "name"),
        [
            ("report:{account_id}:{day}", [7], "report:7:today"),
            ("{account_id:05d}/{day!r}/{day:>7}", [7], "00007/'today'/  today"),
            ("{account_id.pk}:{day[id]}", [Account(3), {"id": 9}], "3:9"),
            ("{{{account_id}}}", [7], "{7}"),
        ],
    )
    def test_fields_are_filled_by_name(self, text, values, name):
        assert fill(text, *values) == name

    @pytest.mark.parametrize(
        "field", ["{acount_id}", "{}", "{0}", "{self}", "{account_id:{widht}}", "{.pk}"]
    )
    def test_a_field_that_no_call_can_fill_is_found_at_once(self, field):
        with pytest.raises(ImproperlyConfigured) as caught:
            Template(f"report:{field}", REPORT, "key")
        message = str(caught.value)
        assert f"key='report:{field}'" in message
        assert "account_id, day, full" in message

    @pytest.mark.parametrize("text", ["", "report\n{day}", "x" * 513, 42])
    def test_text_that_cannot_be_a_name_is_refused(self, text):
        with pytest.raises((ValueError, TypeError), match="key must"):
            Template(text, REPORT, "key")

    @pytest.mark.parametrize(
        ("field", "value", "of"),
        [("{account_id.pk}", None, report), ("{account_id:d}", "x", report), ("{x}", 1, anything)],
    )
    def test_a_value_that_lacks_what_the_field_asks_is_a_value_error(self, field, value, of):
        with pytest.raises(ValueError, match=r"name='.*' (cannot be filled|needs 'x')"):
            fill(field, value, of=of)

    @pytest.mark.parametrize("field", ["{account_id}", "{account_id!r}", "{account_id!s:>9}"])
    @pytest.mark.parametrize("value", [object(), [object()], Account(object()), fill])
    def test_a_text_that_is_a_memory_address_is_a_value_error(self, field, value):
        kind = re.escape(type(value).__qualname__)
        with pytest.raises(ValueError, match=rf"{{account_id}}, a .*{kind}, has a memory address"):
            fill(field, value)
        assert fill("{account_id}", repr(object())), "a str may look like one"

    def test_a_model_is_named_by_its_primary_key_and_not_by_its_text(self):
        user = User(pk=5, username="ann")
        with pytest.raises(ValueError, match=r"auth\.User is not saved"):
            fill("{account_id}", user)
        user._state.adding = False
        assert fill("user:{account_id}", user) == "user:auth.user:5"
        assert fill("user:{account_id.pk}:{account_id!s}", user) == "user:5:ann"


@pytest.mark.parametrize("prefix", ["", "}x"])
def test_a_prefix_that_would_mix_or_spread_keys_is_refused(prefix):
    with pytest.raises(ValueError, match=r"(?i)prefix"):
        Keys(prefix)
