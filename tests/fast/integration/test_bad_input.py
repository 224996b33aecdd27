"""A bad argument raises an error with its name and value, before a request to Redis."""

import asyncio
import math
from datetime import timedelta
from decimal import Decimal
from functools import partial

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redislock import AsyncLock, Lock, locks
from tests.round_trips import RoundTrips

USES = {
    "name": [
        locks.lock,
        locks.get,
        locks.force_release,
        locks.assert_held,
        lambda name: asyncio.run(locks.aget(name)),
        lambda name: asyncio.run(locks.aforce_release(name)),
    ],
    "timeout": [lambda timeout: locks.lock("a", timeout=timeout)],
    "blocking_timeout": [
        lambda wait: locks.lock("a", blocking_timeout=wait),
        lambda wait: locks.lock("a").acquire(blocking_timeout=wait),
        lambda wait: asyncio.run(locks.lock("a").aacquire(blocking_timeout=wait)),
    ],
    "token": [
        lambda token: locks.lock("a").acquire(token=token),
        lambda token: asyncio.run(locks.lock("a").aacquire(token=token)),
    ],
    "blocking": [
        lambda flag: locks.lock("a", blocking=flag),
        lambda flag: locks.lock("a").acquire(blocking=flag),
    ],
    "auto_renewal": [lambda flag: locks.lock("a", auto_renewal=flag)],
    "at_least_for": [lambda least: locks.lock("a", at_least_for=least)],
    "limit": [lambda limit: locks.semaphore("a", limit)],
    "weight": [lambda weight: locks.semaphore("a", 3, weight=weight)],
    "min_replicas": [lambda number: locks.lock("a", min_replicas=number)],
    "max_hold": [lambda most: locks.lock("a", max_hold=most)],
    "metadata": [lambda metadata: locks.lock("a", metadata=metadata)],
    "on_lost": [lambda on_lost: locks.lock("a", on_lost=on_lost)],
    "names": [
        locks.lock_many,
        locks.get_many,
        lambda names: asyncio.run(locks.aget_many(names)),
    ],
    "using": [lambda aliases: locks.quorum("a", aliases)],
    "using_db": [lambda alias: locks.atomic("a", using_db=alias)],
    "release_on_commit": [lambda alias: locks.lock("a", release_on_commit=alias)],
    "kind": [lambda kind: locks.active(kind=kind), lambda kind: locks.aactive(kind=kind)],
    "pattern": [locks.page, locks.active, locks.aactive],
    "start": [lambda start: locks.page(start=start, stop=2)],
    "stop": [lambda stop: locks.page(stop=stop)],
    "alias": [lambda alias: locks.using(alias).get("a")],
}
"""The callables that accept an argument."""


async def coroutine(lock):
    pass


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


BAD = [
    ("name", "", ValueError, "''"),
    ("name", "ä" * 257, ValueError, "514"),
    ("name", 42, TypeError, "42"),
    ("name", "a\nb", ValueError, r"\\n"),
    ("timeout", 0.0099, ValueError, "0.0099"),
    ("timeout", math.nan, ValueError, "nan"),
    ("timeout", 10**400, ValueError, "1000"),
    ("timeout", timedelta(milliseconds=9), ValueError, "microseconds=9000"),
    ("timeout", "30", TypeError, "'30'"),
    ("timeout", True, TypeError, "True"),
    ("timeout", Decimal(30), TypeError, "Decimal"),
    ("blocking_timeout", timedelta(seconds=-1), ValueError, "timedelta"),
    ("blocking_timeout", math.inf, ValueError, "inf"),
    ("blocking_timeout", 10**400, ValueError, "1000"),
    ("blocking_timeout", "5", TypeError, "'5'"),
    ("token", "", ValueError, "''"),
    ("token", "a b", ValueError, "'a b'"),
    ("token", "a:b", ValueError, "'a:b'"),
    ("token", "a\n", ValueError, r"'a\\n'"),
    ("token", "ä", ValueError, "'ä'"),
    ("token", "x" * 129, ValueError, "xxx"),
    ("token", b"\xff", ValueError, "token"),
    ("token", 5, TypeError, "5"),
    ("blocking", "yes", TypeError, "'yes'"),
    ("auto_renewal", 1, TypeError, "1"),
    ("at_least_for", -1, ValueError, "-1"),
    ("at_least_for", None, TypeError, "None"),
    ("limit", 0, ValueError, "0"),
    ("limit", 10**9, ValueError, "1000"),
    ("limit", 1.5, TypeError, "1.5"),
    ("weight", 0, ValueError, "0"),
    ("weight", 4, ValueError, "4"),
    ("weight", 1.0, TypeError, "1.0"),
    ("min_replicas", None, TypeError, "an int"),
    ("min_replicas", 101, ValueError, "from 0 to 100, got 101"),
    ("alias", ["default"], TypeError, r"\['default'\]"),
    *(("names", names, TypeError, "names must") for names in ("abc", None, ["a", 5])),
    ("names", ["a", ""], ValueError, "names must"),
    *(("using", aliases, TypeError, "") for aliases in ("q0", None, ["q0", 1, "q2"])),
    *(("using", aliases, ValueError, "") for aliases in ([], ["q0", "q1", "q0"])),
    ("on_lost", 5, TypeError, "must be callable, got 5"),
    ("on_lost", "mail", ValueError, "'abort', got 'mail'"),
    ("on_lost", coroutine, TypeError, "async"),
    ("using_db", "nowhere", ValueError, "'nowhere'"),
    ("using_db", True, TypeError, "got True"),
    ("release_on_commit", "nosuch", ValueError, "'nosuch'"),
    *(("release_on_commit", each, TypeError, "") for each in (None, ["default"])),
    ("kind", "foo", ValueError, "must be one of .*, got 'foo'"),
    ("pattern", b"a*", TypeError, "a"),
    ("start", 3, ValueError, "from 0 to stop=2, got 3"),
    ("start", "5", TypeError, "got '5'"),
    ("stop", 10**18, ValueError, "got 10"),
    *(("metadata", each, TypeError, "") for each in ([1], "text", {1: "a"}, {"a": object()})),
    *(("metadata", {"a": each}, ValueError, "") for each in (math.nan, "x" * 5000, nested(50))),
]


DIGITS = 10**5000
"""Python refuses to convert it to text."""

NOT_BLOCKING = [
    lambda: locks.lock("a", blocking=False, blocking_timeout=timedelta(seconds=3)),
    lambda: locks.atomic("a", blocking=False, blocking_timeout=0),
    lambda: locks.lock("a").acquire(blocking=False, blocking_timeout=3),
    lambda: locks.lock("a", blocking=False).acquire(blocking_timeout=3),
    lambda: asyncio.run(locks.lock("a").aacquire(blocking=False, blocking_timeout=0)),
]


@pytest.fixture(autouse=True)
def nothing_asked(nothing_left_behind):
    with RoundTrips(of_this_thread=True) as made:
        yield
    assert made.count == 0


@pytest.mark.parametrize(
    ("argument", "value", "error", "text"), BAD, ids=[argument for argument, *_ in BAD]
)
def test_a_bad_value_is_refused_by_name_and_value(argument, value, error, text):
    for use in USES[argument]:
        with pytest.raises(error, match=argument) as caught:
            use(value)
        caught.match(text)


UNKNOWN = "got an unexpected keyword argument 'foo'$"


@pytest.mark.parametrize(
    ("misuse", "error", "says"),
    [
        (lambda: locks.lock("a", foo=1), TypeError, UNKNOWN),
        (lambda: locks.semaphore("a", 3, foo=1), TypeError, UNKNOWN),
        (lambda: locks.lock_many(["a", "b"], foo=1), TypeError, UNKNOWN),
        (lambda: locks.quorum("a", ["default", "other", "third"], foo=1), TypeError, UNKNOWN),
        (lambda: locks.atomic("a", foo=1), TypeError, UNKNOWN),
        *((partial(each, None, "a", foo=1), TypeError, UNKNOWN) for each in (Lock, AsyncLock)),
        *((use, ValueError, r"blocking_timeout=[03] .* blocking=False") for use in NOT_BLOCKING),
        (lambda: locks.lock("a", metadata={"a" * 10**6: object()}), ValueError, "metadata"),
        (lambda: locks.lock("a", metadata={"a": DIGITS}), ValueError, "metadata"),
        (lambda: locks.lock("a", 30), TypeError, "positional"),
        (lambda: locks.force_release("a", 5), TypeError, "token"),
        (lambda: locks.history(limit=0), ValueError, "limit"),
        (lambda: locks.queue("a", -1), ValueError, "limit"),
        (lambda: locks.history(""), ValueError, "name"),
        (lambda: locks.lock_many([]), ValueError, "names"),
        (lambda: locks.atomic("a", release_on_commit=True), TypeError, "release_on_commit"),
        (lambda: locks.lock("a", metadata={"a": nested(100_000)}), ValueError, "metadata"),
    ],
)
def test_an_error_names_the_wrong_argument(misuse, error, says):
    with pytest.raises(error, match=says) as caught:
        misuse()
    assert len(str(caught.value)) < 2500


@pytest.mark.parametrize(
    "value", [b"x" * 1_000_000, list(range(1_000_000)), -DIGITS], ids=["bytes", "list", "int"]
)
@pytest.mark.parametrize("argument", USES)
def test_the_error_about_a_huge_value_is_short(argument, value):
    for use in USES[argument]:
        with pytest.raises(
            (TypeError, ValueError, ImproperlyConfigured), match=argument
        ) as caught:
            use(value)
        assert len(str(caught.value)) < 2500


def test_a_pattern_that_is_longer_than_any_name_matches_nothing():
    assert locks.page("x" * 1_000_000).total == 0
