"""A text of any length from a server, a sender or a user neither stops the process nor floods a
page, a log or a terminal."""

from contextlib import suppress
from decimal import Decimal
from functools import partial
from time import thread_time

import pytest
from redis.exceptions import RedisError

from django_redislock import LockError, locks
from django_redislock.names import check_name, fit_name, matcher, short_repr
from django_redislock.tasks.key import text_of as key_text
from django_redislock.text import any_of, error_text, printable
from tests.lock_fixtures import CORE
from tests.pages import DASHBOARD, LIST, text_of

from .looking import AWAY, page_of, uses_of_the_alias
from .odd_server import odd_server

pytestmark = pytest.mark.django_db

UNITS = ["://", "User ", "<a.b(", "<a", ",a://", "a,", "@", ")>", " has no permissions", "'://"]
UNITS += ["://?", ",redis://a?", "args beginning with: ", "\x00", "\x1b[31m", "\u202e", "?"]
UNITS += ["*", "*?", ":0a", "1", " "]
"""The texts that are repeated, each with the start of something that is searched for."""

MILLION = 1_000_000

SECONDS = 1.0
"""Processor time for a megabyte, which takes some 10 ms. A search that reads the rest of the text
at each position takes seconds for the 20 kB that are tried first."""

SHOWN = 12_000
"""The longest text that is shown."""


def is_quick(do, seconds=SECONDS):
    """Return whether one of three calls takes less processor time. A busy machine may delay it."""
    return any(seconds_of(do) < seconds for _ in range(3))


def seconds_of(do):
    start = thread_time()
    do()
    return thread_time() - start


MAKERS = {
    "an error": error_text,
    "a printed text": printable,
    "a repr": short_repr,
    "a name": fit_name,
    "a pattern": lambda text: matcher(text),
    "a pattern of keys": lambda text: any_of((text[:2_000],)),
    "a key": lambda text: any_of(("*a*b*", "?*://*z")).match(text[:20_000]),
}


@pytest.mark.parametrize("what", MAKERS)
def test_the_time_does_not_grow_faster_than_the_text(what):
    make = MAKERS[what]
    for unit in UNITS:
        for size in (20_000, MILLION):
            text = unit * (size // len(unit))
            assert is_quick(partial(make, text)), (unit, size)


LONG_TEXTS = ["x", "'", "\x00", "é", "\N{LOCK}", "\ud800"]

HOLDERS_OF_TEXT = {
    "an argument": lambda text: text,
    "bytes": lambda text: text.encode(errors="surrogatepass"),
    "an item": lambda text: [text, text],
    "a member": lambda text: {text, f"{text}x"},
    "a key": lambda text: {text: 1, f"{text}x": 2},
    "a nested value": lambda text: {"a": {"b": [text]}},
}


@pytest.mark.parametrize(("what", "unit"), [*zip(HOLDERS_OF_TEXT, LONG_TEXTS, strict=True)])
def test_values_of_many_megabytes_take_little_time(what, unit):
    text = unit * 5 * MILLION
    value = HOLDERS_OF_TEXT[what](text)
    digits, deep = Decimal("1" * MILLION), "x" * 1000
    for _ in range(40):
        deep = [deep, deep]

    def use():
        fit_name(key_text(value))
        for metadata in ({text: 1}, {"a": {text: [text]}}, {"a": deep}):
            with pytest.raises(ValueError, match="at most 4096 characters"):
                locks.lock("m", metadata=metadata)
        with pytest.raises(ValueError, match="at most 512 bytes in UTF-8, got 5000000 characters"):
            check_name(text)
        with pytest.raises(ValueError, match="more than 4300 digits"):
            key_text(digits)

    assert is_quick(use)
    assert key_text(Decimal("10e4999999")) == key_text(Decimal("1e5000000"))


@pytest.mark.parametrize("what", HOLDERS_OF_TEXT)
def test_long_arguments_that_differ_have_different_names(what):
    def name(unit, end):
        return fit_name(f"a:{key_text(HOLDERS_OF_TEXT[what](unit * 10_000 + end))}")

    for unit in LONG_TEXTS:
        assert name(unit, "1") == name(unit, "1")
        assert len({name(unit, end) for end in ("1", "2", "", "\x00", "\\x00")}) == 5


def test_a_text_cannot_be_the_shortened_text_of_another():
    shortened = key_text("x" * 1000)

    assert key_text(shortened) != shortened
    assert key_text([shortened]) != key_text(["x" * 1000])
    assert key_text(["x" * 1000, "y"]) != key_text([f'{"x" * 512}"{shortened[514:]},"y'])
    assert key_text(b"x" * 1000) != key_text("x" * 1000)


SECRET = "\N{SECTION SIGN}"

QUOTES = {
    "an address": f"redis://{SECRET * 30}:{SECRET * 30}@{SECRET * 30}@host:6379/0 is away",
    "a second address": f"a://b@c, redis://{SECRET * 40}@{SECRET * 40}@host:6379/0 is away",
    "a client": f"<redis.client.Redis(password={SECRET * 40}(x)>{SECRET * 40})> is away",
    "a request": f"with args beginning with: '{SECRET * 40}' '{SECRET * 40}'",
    "a user": f"User {SECRET * 80} has no permissions to run this",
}


@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)
def test_a_cut_inside_a_secret_does_not_show_the_secret(quote):
    lengths = {len(error_text("x" * MILLION)), 10 * len(error_text("x" * MILLION))}
    for length in lengths:
        for before in range(length - len(quote) - 10, length + 10):
            for after in (0, MILLION):
                shown = error_text(f"{'x' * before} {quote} {'x' * after}")
                assert SECRET not in shown, (before, after)
                assert shown.startswith("x" * min(before, 50))
                assert SECRET not in short_repr(f"{'x' * (before % 90)} {quote}")


@pytest.mark.parametrize(("unit", "count"), [("://", 20_000), ("User ", 60_000)])
def test_the_error_of_a_server_is_shown_in_short(
    settings, alias_on, caplog, operator, unit, count
):
    settings.CACHES = {**settings.CACHES, "away": AWAY}
    with odd_server(f"-ERR {unit * count}\r\n".encode()) as port:
        settings.REDISLOCK_CACHE = alias_on(f"redis://127.0.0.1:{port}/0", protocol=2).alias
        for use in uses_of_the_alias(operator):
            with suppress(RedisError, LockError):
                assert len(use()) < 150_000, "the page or text has the whole error"
    ours = [each for each in caplog.records if each.name == "django_redislock"]
    assert all(len(record.getMessage()) < SHOWN for record in ours)


@pytest.mark.parametrize(
    ("address", "parameter"), [(LIST, "q"), (DASHBOARD, "using"), (page_of("a"), "unknown")]
)
def test_a_long_search_is_answered_and_an_address_that_is_too_long_is_refused(
    settings, operator, address, parameter
):
    """A page repeats the address in its links. Many web servers refuse such an address."""
    for unit in ("://", "\x00", "*?", "?"):
        search = {"q": unit * (2000 // len(unit))}
        assert is_quick(partial(operator.get, address, search), 2 * SECONDS)
    response = operator.get(address, {parameter: "://" * MILLION})
    assert response.status_code == 400
    assert len(response.content) < SHOWN

    away = {"BACKEND": CORE, "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": away}
    response = operator.get(address, {"using": "://" * 600})
    assert response.status_code == 404
    assert "://://" not in text_of(response)
