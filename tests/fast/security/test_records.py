"""Another tenant of the server can write to the keys of locks. A record that does not parse is
skipped. It hides no other lock, blocks no other lock, and raises no unexpected error."""

import asyncio
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import RedisError

from django_redislock import LockError, locks
from tests.lock_tools import start
from tests.pages import RELEASE
from tests.tools import wait_until

from .forging import (
    HOLDER,
    INFOS,
    NAMES,
    NUMBERS,
    STREAMS,
    WAITER,
    holders,
    infos,
    invalid,
    key_of,
    keys_of,
    numbers,
    raws,
    waiters,
)
from .fuzzing import fuzzed
from .looking import command, ways_to_see, ways_to_see_the_past

pytestmark = pytest.mark.django_db

GOOD = "ours"
BAD = "theirs"
OTHER = "another of ours"
AT_ONCE = 15  # locks, besides those of NAMES. The dashboard shows the 30 that were busiest
FACTS = ("kind", "capacity", "used", "soonest", "latest")
EVENT = ("name", "kind", "token", "how", "at", "holder", "weight", "waited", "info")


@pytest.fixture
def other_locks_work(tenant, operator):
    """Check that our locks can be held, renewed, listed and released, and that
    operations on their locks work or raise an error of redis-py."""

    def check():
        with locks.lock(GOOD, blocking=False) as lock:
            for way, see in ways_to_see(GOOD, operator):
                assert GOOD in see(), f"{way} does not show it"
            assert lock.reacquire()
            with locks.lock(OTHER, blocking=False):
                pass
        for way, see in ways_to_see_the_past(GOOD, operator):
            assert GOOD in see(), f"{way} does not show it"
        assert sum(locks.rates().counts["acquired"])
        assert locks.count() >= 0
        use(BAD)

    return check


def use(name):
    for do in (
        lambda: locks.get(name),
        lambda: locks.queue(name),
        lambda: locks.history(name),
        lambda: command("show", name),
        lambda: locks.lock(name).locked(),
        lambda: locks.lock(name).acquire(blocking=False),
        lambda: locks.lock(name).acquire(blocking_timeout=0.01),
        lambda: locks.semaphore(name, 2).acquire(blocking=False),
        lambda: locks.release_for(name, "token0"),
        lambda: locks.force_release(name, "token1"),
        lambda: locks.force_release(name),
    ):
        with suppress(RedisError):
            do()


def test_records_and_names_that_are_known_to_be_hard(tenant, other_locks_work):
    records = [tenant.holder(info) for info in INFOS]
    for part in HOLDER:
        records += [tenant.holder(**{part: number}) for number in NUMBERS]
    queued = [tenant.waiter(info) for info in INFOS]
    for part in WAITER:
        queued += [tenant.waiter(**{part: number}) for number in NUMBERS]
    for first in range(0, len(records), AT_ONCE):
        tenant.client.flushdb()
        tenant.lock(BAD, *records, beside=GOOD)
        tenant.queue(BAD, *queued)
        for name in NAMES:
            tenant.lock(name, tenant.holder(), beside=GOOD)
        for at, record in enumerate(records[first : first + AT_ONCE]):
            tenant.lock(f"{BAD} {at}", record, beside=GOOD)
            for stream in STREAMS:
                tenant.client.xadd(key_of(GOOD, stream), tenant.event(BAD, record, record))
        other_locks_work()


locks_with_holders = st.tuples(st.lists(holders, max_size=3), invalid(*FACTS))
scores = st.sampled_from([1, 1e13, 1e15, 2.0**53, float("inf")])
missing = st.sets(st.sampled_from(EVENT), max_size=2)
events = st.tuples(st.sampled_from(STREAMS), holders, infos, invalid(*EVENT), missing)
rates = st.dictionaries(raws | numbers.map(lambda number: f"{number} lost"), raws | numbers)


@fuzzed(6)
@given(
    st.lists(locks_with_holders, min_size=1, max_size=5),
    st.lists(waiters, max_size=5),
    st.dictionaries(raws, scores, max_size=5),
    st.lists(events, max_size=5),
    rates,
)
def test_records_and_names(tenant, other_locks_work, drawn, queued, names, past, counts):
    tenant.client.flushdb()
    for at, (records, facts) in enumerate(drawn):
        records = [tenant.made(tenant.holder, each) for each in records]
        tenant.lock(f"{BAD} {at}" if at else BAD, *records, beside=GOOD, **facts)
    if queued:
        tenant.queue(BAD, *(tenant.made(tenant.waiter, each) for each in queued))
    for name, score in names.items():
        tenant.lock(name, tenant.holder(), beside=GOOD)
        tenant.client.zadd(key_of(GOOD, "index"), {name: score})
    for stream, record, info, bad_fields, without in past:
        fields = tenant.event(BAD, tenant.made(tenant.holder, record), info) | bad_fields
        fields = {name: fields[name] for name in fields if name not in without}
        tenant.client.xadd(key_of(GOOD, stream), fields)
    if counts:
        tenant.client.hset(key_of(GOOD, "rates"), mapping=counts)
    other_locks_work()


def test_a_forged_grant_is_ignored(tenant):
    def inboxes():
        found = tenant.client.keys(f"{keys_of(GOOD).inboxes}*:alive")
        return [key.removesuffix(b":alive") for key in found]

    with locks.lock(GOOD, blocking=False):
        waits = start(locks.lock(GOOD, blocking_timeout=1).acquire)
        [inbox] = wait_until(inboxes)
        for forged in (b"", b"\xff", b"nan 1 1", b"9" * 5000, b"1 2", b"-1 5 1", b"1 0 1"):
            tenant.client.rpush(inbox, forged)
        wait_until(lambda: not tenant.client.exists(inbox))
        tenant.client.rpush(inbox, b"99999999 5 1")  # without a matching waiter
        assert waits.result(60) is False


@pytest.mark.parametrize("kind", ["string", "set"])
@pytest.mark.parametrize("part", ["", ":alive"])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_inbox_of_another_type_fails_no_waiter(tenant, is_async, part, kind):
    lock, waiter = locks.lock(GOOD, blocking=False), locks.lock(GOOD, blocking_timeout=60)
    assert lock.acquire()
    waits = start(lambda: asyncio.run(waiter.aacquire()) if is_async else waiter.acquire())
    [alive] = wait_until(lambda: tenant.client.keys(f"{keys_of(GOOD).inboxes}*:alive"))
    tenant.of_type(kind, alive.removesuffix(b":alive") + part.encode())
    lock.release()
    assert waits.result(60)
    locks.force_release(GOOD)


def test_the_error_names_the_task_that_holds_the_lock(tenant):
    tenant.lock(GOOD, tenant.holder(), beside=GOOD)
    message = r"held by web1:42 \(shop\.pay\) for"
    with pytest.raises(LockError, match=message), locks.lock(GOOD, blocking=False):
        pass


def test_a_kind_cannot_control_the_terminal(tenant):
    tenant.lock(GOOD, tenant.holder(), beside=GOOD, kind="\x1b[31m\n\u202e")
    tenant.lock(OTHER, beside=GOOD, kind="\x1b[31m\n\u202e")
    tenant.queue(OTHER, tenant.waiter())
    fields = tenant.event(GOOD, tenant.holder()) | {"kind": "\x1b[31m", "how": "\x1b[31m\u202e"}
    tenant.client.xadd(key_of(GOOD, "broken"), fields)

    shown = command("show", GOOD) + command("show", OTHER) + command("list") + command("history")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    with pytest.raises(RedisError) as caught:
        locks.lock(GOOD).acquire(blocking=False)
    assert "\x1b" not in str(caught.value)


ODD_TOKENS = ["", "a b", "x:y", "é", "x" * 200, "a\nb"]


def plant(tenant, token):
    """Write a holder with a token that this package never creates. Return the lock's name."""
    name = f"planted {ODD_TOKENS.index(token)}"
    keys, end = keys_of(name), tenant.now + 60_000
    facts = {"kind": "mutex", "capacity": 1, "used": 1, "soonest": end, "latest": end}
    tenant.client.hset(keys.lock, mapping=facts | {f"h:{token}": tenant.holder()})
    tenant.client.zadd(keys.index, {name: end})
    return name


def test_holders_with_odd_tokens_can_be_released(tenant, operator):
    names = [plant(tenant, token) for token in ODD_TOKENS]
    held = {info.name: info.fence_token for info in locks.active()}
    assert held.keys() == set(names)

    assert f"Released {names[0]}" in command("release", names[0], "--yes")
    ours = locks.lock(GOOD)
    assert ours.acquire()
    seen = json.dumps([*list(held.items())[1:4], (GOOD, ours.fence_token)])
    response = operator.post(RELEASE, {"seen": seen, "confirmed": "yes"})
    printed = command("release", "--all", "--yes")

    assert response.status_code == 302
    assert not ours.owned()
    assert all(f"Released {name}" in printed for name in list(held)[4:] if name != names[0])
    assert locks.count() == 0


def test_the_holder_with_an_empty_token_is_released_alone(tenant):
    pool = locks.semaphore(GOOD, 2)
    with pool:
        keys = keys_of(GOOD)
        tenant.client.hset(keys.lock, mapping={"h:": tenant.holder(), "used": 2})
        assert len(locks.get(GOOD).holders) == 2

        assert locks.force_release(GOOD, "") == 1

        assert pool.owned()
        assert len(locks.get(GOOD).holders) == 1
