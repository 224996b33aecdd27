"""A bad argument raises an error with its name and value, before a request to Redis."""

import asyncio
import math
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redislock import AsyncLock, Lock, locks
from tests.lock_tools import commands

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
    "alias": [locks.using],
}
"""The callables that accept an argument."""

BAD = [
    ("name", "", ValueError, "''"),
    ("name", "ä" * 257, ValueError, "514"),
    ("name", 42, TypeError, "42"),
    ("name", "a\nb", ValueError, r"\\n"),
    ("timeout", 0, ValueError, "0"),
    ("timeout", 0.0099, ValueError, "0.0099"),
    ("timeout", math.nan, ValueError, "nan"),
    ("timeout", -math.inf, ValueError, "-inf"),
    ("timeout", 10**400, ValueError, "1000"),
    ("timeout", timedelta(milliseconds=9), ValueError, "microseconds=9000"),
    ("timeout", timedelta.max, ValueError, "999999999"),
    ("timeout", "30", TypeError, "'30'"),
    ("timeout", True, TypeError, "True"),
    ("timeout", Decimal(30), TypeError, "Decimal"),
    ("blocking_timeout", -0.001, ValueError, "-0.001"),
    ("blocking_timeout", timedelta(seconds=-1), ValueError, "timedelta"),
    ("blocking_timeout", math.nan, ValueError, "nan"),
    ("blocking_timeout", math.inf, ValueError, "inf"),
    ("blocking_timeout", 10**400, ValueError, "1000"),
    ("blocking_timeout", "5", TypeError, "'5'"),
    ("blocking_timeout", False, TypeError, "False"),
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
    ("at_least_for", math.nan, ValueError, "nan"),
    ("at_least_for", math.inf, ValueError, "inf"),
    ("at_least_for", "1", TypeError, "'1'"),
    ("at_least_for", None, TypeError, "None"),
    ("limit", 0, ValueError, "0"),
    ("limit", 10**9, ValueError, "1000"),
    ("limit", 1.5, TypeError, "1.5"),
    ("limit", True, TypeError, "True"),
    ("weight", 0, ValueError, "0"),
    ("weight", 4, ValueError, "4"),
    ("weight", 1.0, TypeError, "1.0"),
    ("min_replicas", 1.5, TypeError, "an int"),
    ("min_replicas", None, TypeError, "an int"),
    ("min_replicas", -1, ValueError, "from 0 to 100, got -1"),
    ("min_replicas", 101, ValueError, "from 0 to 100, got 101"),
    ("alias", b"default", TypeError, "b'default'"),
    ("alias", ["default"], TypeError, r"\['default'\]"),
]


@pytest.fixture(autouse=True)
def nothing_asked(redis_server, nothing_left_behind):
    with commands(redis_server) as called:
        yield
    assert not called


@pytest.mark.parametrize(
    ("argument", "value", "error", "text"), BAD, ids=[repr(row[:2])[:40] for row in BAD]
)
def test_a_bad_value_is_refused_by_name_and_value(argument, value, error, text):
    for use in USES[argument]:
        with pytest.raises(error, match=argument) as caught:
            use(value)
        caught.match(text)


@pytest.mark.parametrize("names", ["abc", None, 5, ["a", ""], ["a", 5]])
def test_several_names(names):
    uses = [
        lambda: locks.lock_many(names),
        lambda: locks.get_many(names),
        lambda: asyncio.run(locks.aget_many(names)),
    ]
    for use in uses:
        with pytest.raises((TypeError, ValueError), match="names must"):
            use()


@pytest.mark.parametrize("wait", [0, 3, timedelta(seconds=3)])
def test_blocking_timeout_without_blocking(wait):
    lock = locks.lock("a")
    uses = [
        lambda: locks.lock("a", blocking=False, blocking_timeout=wait),
        lambda: locks.semaphore("a", 2, blocking=False, blocking_timeout=wait),
        lambda: locks.atomic("a", blocking=False, blocking_timeout=wait),
        lambda: lock.acquire(blocking=False, blocking_timeout=wait),
        lambda: locks.lock("a", blocking=False).acquire(blocking_timeout=wait),
        lambda: asyncio.run(lock.aacquire(blocking=False, blocking_timeout=wait)),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"blocking_timeout=[03] .* blocking=False"):
            use()


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ([1], TypeError),
        ("text", TypeError),
        ({1: "a"}, TypeError),
        ({"a": object()}, TypeError),
        ({"a": math.nan}, ValueError),
        ({"a": "x" * 5000}, ValueError),
        ({"a": nested(100_000)}, ValueError),
        ({"a": nested(50)}, ValueError),
    ],
    ids=["list", "str", "int key", "object", "nan", "long", "very deep", "deep"],
)
def test_metadata(metadata, error):
    with pytest.raises(error, match="metadata"):
        locks.lock("a", metadata=metadata)
    assert locks.lock("a", metadata=None).metadata == {}


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("lock", ["a"]),
        ("read_lock", ["a"]),
        ("write_lock", ["a"]),
        ("semaphore", ["a", 3]),
        ("lock_many", [["a", "b"]]),
        ("quorum", ["a", ["default", "other", "third"]]),
        ("atomic", ["a"]),
    ],
)
def test_unknown_options_are_named(method, arguments):
    with pytest.raises(TypeError, match=r"\(\) got an unexpected keyword argument 'foo'$"):
        getattr(locks, method)(*arguments, foo=1)


def test_unknown_options_of_lock_classes():
    for lock_class in (Lock, AsyncLock):
        message = rf"^{lock_class.__name__}\(\) got an unexpected keyword argument 'foo'$"
        with pytest.raises(TypeError, match=message):
            lock_class(None, "a", foo=1)


@pytest.mark.parametrize(
    ("misuse", "error", "says"),
    [
        (lambda: locks.lock("a", 30), TypeError, "positional"),
        (lambda: locks.force_release("a", b"\xff"), ValueError, "token"),
        (lambda: locks.force_release("a", 5), TypeError, "token"),
        (lambda: locks.history(limit=0), ValueError, "limit"),
        (lambda: locks.history(limit=10**9), ValueError, "limit"),
        (lambda: locks.history(limit="5"), TypeError, "limit"),
        (lambda: locks.queue("a", -1), ValueError, "limit"),
        (lambda: locks.history(""), ValueError, "name"),
        (lambda: locks.page(start=3, stop=2), ValueError, "start must be from 0 to stop=2, got 3"),
        (lambda: locks.page(start=-1), ValueError, "start must be .*, got -1"),
        (lambda: locks.page(stop=10**18), ValueError, "stop must be .*, got 10"),
        (lambda: locks.page(start="5"), TypeError, "start must be .*, got '5'"),
        (lambda: locks.page(5), TypeError, "pattern"),
        (lambda: locks.active(5), TypeError, "pattern"),
        (lambda: locks.aactive(b"a*"), TypeError, "pattern"),
        (lambda: locks.lock_many([]), ValueError, "names"),
        (lambda: locks.active(kind="foo"), ValueError, "kind must be one of .*, got 'foo'"),
        (lambda: locks.aactive(kind="foo"), ValueError, "kind must be one of .*, got 'foo'"),
        (lambda: locks.atomic("a", release_on_commit=True), TypeError, "release_on_commit"),
        (lambda: locks.atomic("a", using_db="nowhere"), ValueError, "using_db .*'nowhere'"),
        (lambda: locks.atomic("a", using_db=True), TypeError, "using_db .*got True"),
        (lambda: locks.lock("a", on_lost=5), TypeError, "on_lost must be callable, got 5"),
        (lambda: locks.lock("a", on_lost="mail"), ValueError, "on_lost .* 'abort', got 'mail'"),
        (lambda: locks.lock("a", on_lost=coroutine), TypeError, "on_lost .* async"),
    ],
)
def test_an_error_names_the_wrong_argument(misuse, error, says):
    with pytest.raises(error, match=says):
        misuse()


async def coroutine(lock):
    pass


HUGE = "x" * 1_000_000
MANY = list(range(1_000_000))
DIGITS = 10**5000
"""Python refuses to convert it to text."""


@pytest.mark.parametrize(
    ("argument", "misuse"),
    [
        ("name", lambda: locks.lock(HUGE)),
        ("name", lambda: locks.lock(HUGE.encode())),
        ("name", lambda: locks.lock(f"\n{HUGE}")),
        ("name", lambda: locks.get(DIGITS)),
        ("names", lambda: locks.lock_many([HUGE])),
        ("names", lambda: locks.lock_many(HUGE)),
        ("timeout", lambda: locks.lock("a", timeout=HUGE)),
        ("timeout", lambda: locks.lock("a", timeout=DIGITS)),
        ("blocking_timeout", lambda: locks.lock("a", blocking_timeout=DIGITS)),
        ("blocking", lambda: locks.lock("a", blocking=MANY)),
        ("auto_renewal", lambda: locks.lock("a", auto_renewal=DIGITS)),
        ("at_least_for", lambda: locks.lock("a", at_least_for=DIGITS)),
        ("max_hold", lambda: locks.lock("a", max_hold=-DIGITS)),
        ("limit", lambda: locks.semaphore("a", DIGITS)),
        ("weight", lambda: locks.semaphore("a", 3, weight=HUGE)),
        ("on_lost", lambda: locks.lock("a", on_lost=HUGE)),
        ("metadata", lambda: locks.lock("a", metadata={HUGE: object()})),
        ("metadata", lambda: locks.lock("a", metadata={"a": HUGE, "b": object()})),
        ("metadata", lambda: locks.lock("a", metadata={"a": DIGITS})),
        ("metadata", lambda: locks.lock("a", metadata=MANY)),
        ("token", lambda: locks.lock("a").acquire(token=HUGE)),
        ("token", lambda: locks.lock("a").acquire(token=HUGE.encode())),
        ("alias", lambda: locks.using(MANY)),
        ("cache alias", lambda: locks.using(HUGE).get("a")),
        ("using", lambda: locks.quorum("a", [HUGE, HUGE, HUGE])),
        ("using", lambda: locks.quorum("a", MANY)),
        ("using_db", lambda: locks.atomic("a", using_db=HUGE)),
        ("kind", lambda: locks.active(kind=HUGE)),
        ("limit", lambda: locks.history(limit=DIGITS)),
        ("pattern", lambda: locks.page(HUGE.encode())),
        ("start", lambda: locks.page(start=DIGITS, stop=1)),
        ("stop", lambda: locks.page(stop=DIGITS)),
    ],
)
def test_the_error_about_a_huge_value_is_short(argument, misuse):
    with pytest.raises((TypeError, ValueError, ImproperlyConfigured), match=argument) as caught:
        misuse()
    assert len(str(caught.value)) < 2500


def test_a_huge_pattern_matches_nothing():
    assert locks.page(HUGE).total == 0
