"""A text of any length from a server, a sender or a user neither stops the process nor floods a
page, a log or a terminal."""

from contextlib import suppress
from decimal import Decimal
from functools import partial
from time import thread_time

import pytest
from redis.exceptions import RedisError

from django_redislock import LockError
from django_redislock.names import fit_name, matcher, short_repr
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

    def seconds_of_a_call():
        start = thread_time()
        do()
        return thread_time() - start

    return any(seconds_of_a_call() < seconds for _ in range(3))


MAKERS = {
    "an error": error_text,
    "a printed text": printable,
    "a repr": short_repr,
    "a name": fit_name,
    "an argument": key_text,
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


@pytest.mark.parametrize(
    "make", [str, str.encode, lambda text: [text], lambda text: {text}, lambda text: {text: 1}]
)
def test_long_arguments_that_differ_have_different_names(make):
    def name(text):
        return fit_name(f"a:{key_text(make(text))}")

    for unit in ("x", "'", "\x00", "é"):
        long = unit * 10_000
        texts = [long, f"{long}1", f"{long}\x00", f"{long}\\x00", key_text(long)]
        assert len({name(text) for text in texts}) == len(texts)
        assert name(long) == name(long)


def test_a_number_of_too_many_digits_is_refused():
    with pytest.raises(ValueError, match="more than 4300 digits"):
        key_text(Decimal("1" * MILLION))


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
    for length in (len(error_text("x" * MILLION)), 10 * len(error_text("x" * MILLION))):
        for before in range(length - len(quote) - 10, length + 10):
            for after in (0, MILLION):
                assert SECRET not in error_text(f"{'x' * before} {quote} {'x' * after}")


def test_the_error_of_a_server_is_shown_in_short(settings, alias_on, caplog, operator):
    settings.CACHES = {**settings.CACHES, "away": AWAY}
    with odd_server(b"-ERR " + b"://User " * 20_000 + b"\r\n") as port:
        settings.REDISLOCK_CACHE = alias_on(f"redis://127.0.0.1:{port}/0", protocol=2).alias
        for use in uses_of_the_alias(operator):
            with suppress(RedisError, LockError):
                assert len(use()) < 150_000, "the page or text has the whole error"
    ours = [each for each in caplog.records if each.name == "django_redislock"]
    assert all(len(record.getMessage()) < SHOWN for record in ours)


def test_a_long_search_is_answered_and_an_address_that_is_too_long_is_refused(settings, operator):
    for address in (LIST, DASHBOARD, page_of("a")):
        for unit in ("://", "\x00", "*?", "?"):
            search = {"q": unit * (2000 // len(unit))}
            assert is_quick(partial(operator.get, address, search), 2 * SECONDS)
        response = operator.get(address, {"q": "://" * MILLION})
        assert response.status_code == 400
        assert len(response.content) < SHOWN

    settings.CACHES = {"default": {"BACKEND": CORE, "LOCATION": "redis://127.0.0.1:1/0"}}
    response = operator.get(LIST, {"using": "://" * 600})
    assert response.status_code == 404
    assert "://://" not in text_of(response)
