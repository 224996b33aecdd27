import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redislock.text import parse_duration, printable, redacted_metadata, short_duration


def test_only_printable_characters_are_shown_as_they_are():
    assert printable("日本 é a\x1b[31m\n\u202e\ud800") == r"日本 é a\x1b[31m\n\u202e\ud800"
    assert (printable("  "), printable(" \xa0")) == (r"\x20\x20", r" \xa0")


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0.0s"), (59.9, "59s"), (187200, "2d 4h")])
def test_durations_are_short(seconds, text):
    assert short_duration(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("2h", 7200), ("1.5m", 90), ("0", 0)])
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "5 weeks", "1e9", "nan", "inf", "٣s", "9" * 400])
def test_invalid_durations_are_refused(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_values_are_hidden_by_their_keys_at_any_depth_and_in_any_case(settings):
    deep = "bottom"
    for _ in range(10_000):
        deep = [{"x": deep}]
    user = {"api_token": [1, 2], "tags": [{"token": "t", "n": 1}]}
    metadata = {"why": "close", "Password": "x", "user": user}
    assert redacted_metadata(metadata) == metadata
    assert "bottom" not in str(redacted_metadata({"x": deep}))

    settings.REDISLOCK_REDACT = ["pass*", "*TOKEN"]

    assert redacted_metadata(metadata) == {
        "why": "close",
        "Password": "***",
        "user": {"api_token": "***", "tags": [{"token": "***", "n": 1}]},
    }
    assert metadata["Password"] == "x"
    for settings.REDISLOCK_REDACT in ("password", [1], [""], None, {"password": 1}):
        with pytest.raises(ImproperlyConfigured, match="REDISLOCK_REDACT"):
            redacted_metadata(metadata)
