"""A bad argument raises an error with its name and value, before a request to Redis."""

import asyncio
import math
from datetime import timedelta
from decimal import Decimal
from functools import partial

import pytest
from redis import Redis

from django_redislock import Lock, locks
from tests.round_trips import RoundTrips


def option(name):
    return lambda value: locks.lock("a", **{name: value})


def awaited(function):
    return lambda value: asyncio.run(function(value))


USES = {
    "name": [locks.lock, locks.get, locks.force_release, awaited(locks.aget)],
    **{name: [option(name)] for name in ("timeout", "at_least_for", "max_hold")},
    **{name: [option(name)] for name in ("min_replicas", "metadata", "on_lost")},
    "release_on_commit": [option("release_on_commit")],
    "blocking_timeout": [
        option("blocking_timeout"),
        lambda wait: locks.lock("a").acquire(blocking_timeout=wait),
    ],
    "token": [lambda token: locks.lock("a").acquire(token=token)],
    "blocking": [option("blocking"), lambda flag: locks.lock("a").acquire(blocking=flag)],
    "limit": [lambda limit: locks.semaphore("a", limit)],
    "weight": [lambda weight: locks.semaphore("a", 3, weight=weight)],
    "names": [locks.lock_many, locks.get_many],
    "using": [lambda aliases: locks.quorum("a", aliases)],
    "using_db": [lambda alias: locks.atomic("a", using_db=alias)],
    "kind": [lambda kind: locks.active(kind=kind)],
    "pattern": [locks.page],
    "start": [lambda start: locks.page(start=start, stop=2)],
    "stop": [lambda stop: locks.page(stop=stop)],
}
"""The callables that accept an argument."""


async def coroutine(lock):
    pass


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


WRONG_TYPES = {
    "name": [42],
    "timeout": ["30", True, Decimal(30)],
    "blocking_timeout": ["5"],
    "token": [5],
    "blocking": ["yes"],
    "limit": [1.5],
    "names": ["abc", None, ["a", 5]],
    "using": ["q0", None, ["q0", 1, "q2"]],
    "on_lost": [5, coroutine],
    "release_on_commit": [None, ["default"]],
    "using_db": [True],
    "pattern": [b"a*"],
    "metadata": [[1], {1: "a"}, {"a": object()}],
}
WRONG_VALUES = {
    "name": ["", "ä" * 257, "a\nb"],
    "timeout": [0.0099, math.nan, 10**400, timedelta(milliseconds=9)],
    "blocking_timeout": [timedelta(seconds=-1), math.inf, 10**400],
    "token": ["", "a b", "a:b", "a\n", "ä", "x" * 129],
    "at_least_for": [-1],
    "limit": [0, 10**9],
    "weight": [0, 4],
    "min_replicas": [101],
    "names": [["a", ""]],
    "using": [[], ["q0", "q1", "q0"]],
    "on_lost": ["mail"],
    "using_db": ["nowhere"],
    "release_on_commit": ["nosuch"],
    "kind": ["foo"],
    "start": [3],
    "stop": [10**18],
    "metadata": [{"a": each} for each in (math.nan, "x" * 5000, nested(50))],
}
NOT_QUOTED = ("metadata", "names", "using", "name")
"""The error names only the wrong part of it, or only its length."""

DIGITS = 10**5000
"""Python refuses to convert it to text."""

NOT_BLOCKING = [
    lambda: locks.lock("a", blocking=False, blocking_timeout=timedelta(seconds=3)),
    lambda: locks.lock("a").acquire(blocking=False, blocking_timeout=3),
]


WRONG_MOST = [
    {"max_hold": 30},
    {"max_hold": 40, "auto_renewal": False},
    {"max_hold": 40, "at_least_for": 50},
]
WRONG_LEADERS = [
    (partial(locks.leader, "poller", blocking=False), TypeError, "leader.*'blocking'"),
    (partial(locks.aleader, "poller", on_lost="abort"), ValueError, "on_lost='abort'"),
]
IN_ASYNC = locks.lock("a", release_on_commit=True).aacquire
ONE_THREAD = [
    {"thread_local": False, **option}
    for option in ({"on_lost": "abort"}, {"release_on_commit": True}, {"reentrant": True})
]


@pytest.fixture(autouse=True)
def nothing_asked(nothing_left_behind):
    with RoundTrips(of_this_thread=True) as made:
        yield
    assert made.count == 0


@pytest.mark.parametrize(
    ("argument", "error", "values"),
    [
        *((argument, TypeError, values) for argument, values in WRONG_TYPES.items()),
        *((argument, ValueError, values) for argument, values in WRONG_VALUES.items()),
    ],
)
def test_a_bad_value_is_refused_by_name_and_value(argument, error, values):
    for value in values:
        for use in USES[argument]:
            with pytest.raises(error, match=argument) as caught:
                use(value)
            if argument not in NOT_QUOTED:
                assert repr(value)[:4] in str(caught.value)


UNKNOWN = "got an unexpected keyword argument 'foo'$"


@pytest.mark.parametrize(
    ("misuse", "error", "says"),
    [
        (lambda: locks.lock("a", foo=1), TypeError, UNKNOWN),
        (lambda: locks.atomic("a", foo=1), TypeError, UNKNOWN),
        (partial(Lock, None, "a", foo=1), TypeError, UNKNOWN),
        (lambda: asyncio.run(IN_ASYNC()), TypeError, "in async code"),
        *((use, ValueError, r"blocking_timeout=[03] .* blocking=False") for use in NOT_BLOCKING),
        (lambda: locks.lock("a", metadata={"a" * 10**6: object()}), ValueError, "metadata"),
        (lambda: locks.lock("a", metadata={"a": DIGITS}), ValueError, "metadata"),
        (lambda: locks.lock("a", metadata={"a": nested(100_000)}), ValueError, "metadata"),
        (lambda: locks.lock("a").acquire(token=b"\xff"), ValueError, "token"),
        *((partial(locks.lock, "a", **most), ValueError, "max_hold=") for most in WRONG_MOST),
        *((make, error, says) for make, error, says in WRONG_LEADERS),
        *(
            (partial(Lock, Redis(), "a", **each), ValueError, "thread_local")
            for each in ONE_THREAD
        ),
        (lambda: locks.history(limit=0), ValueError, "limit"),
        (lambda: locks.queue("a", -1), ValueError, "limit"),
        (lambda: locks.lock_many([]), ValueError, "names"),
        (lambda: locks.atomic("a", release_on_commit=True), TypeError, "release_on_commit"),
    ],
)
def test_an_error_names_the_wrong_argument(misuse, error, says):
    with pytest.raises(error, match=says) as caught:
        misuse()
    assert len(str(caught.value)) < 2500
