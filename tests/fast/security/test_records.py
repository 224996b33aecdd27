"""Another tenant of the server can write to the keys of locks. A record that does not parse is
skipped. It hides no other lock, blocks no other lock, and raises no unexpected error."""

import json
from contextlib import suppress

import pytest
from redis.exceptions import RedisError

from django_redislock import locks
from tests.lock_tools import start
from tests.pages import RELEASE
from tests.tools import wait_until

from .forging import HOLDER, INFOS, NAMES, NUMBERS, STREAMS, WAITER, key_of, keys_of
from .looking import command, ways_to_see, ways_to_see_the_past

pytestmark = pytest.mark.django_db

GOOD = "ours"
BAD = "theirs"
OTHER = "another of ours"
AT_ONCE = 15  # locks, besides those of NAMES. The dashboard shows the 30 that were busiest


def other_locks_work(operator):
    """Check that our locks can be held, renewed, listed and released, and that
    operations on their locks work or raise an error of redis-py."""
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


def use(name):
    for do in (
        lambda: locks.get(name),
        lambda: command("show", name),
        lambda: locks.lock(name).acquire(blocking=False),
        lambda: locks.lock(name).acquire(blocking_timeout=0.01),
        lambda: locks.force_release(name, "token1"),
        lambda: locks.force_release(name),
    ):
        with suppress(RedisError):
            do()


def test_records_and_names_that_are_known_to_be_hard(tenant, operator):
    records = [tenant.holder(info) for info in INFOS]
    queued = [tenant.waiter(info) for info in INFOS]
    for number in NUMBERS:
        records += [tenant.holder(**{part: number}) for part in HOLDER]
        queued += [tenant.waiter(**{part: number}) for part in WAITER]
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
        other_locks_work(operator)


@pytest.mark.parametrize("value", [b"", b"\xff\x00", b"nan", b"9" * 400])
def test_facts_events_and_rates_that_are_known_to_be_hard(tenant, operator, value):
    for at, fact in enumerate(("kind", "capacity", "used", "soonest", "latest")):
        tenant.lock(f"{BAD} {at}" if at else BAD, tenant.holder(), beside=GOOD, **{fact: value})
    for name, score in ((b"\xff", 1), (b"a", 2.0**53), (value, float("inf"))):
        tenant.client.zadd(key_of(GOOD, "index"), {name: score})
    for stream in STREAMS:
        event = tenant.event(BAD, tenant.holder())
        for field in event:
            tenant.client.xadd(key_of(GOOD, stream), event | {field: value})
            without = {name: event[name] for name in event if name != field}
            tenant.client.xadd(key_of(GOOD, stream), without)
    rates = {value: 1, b"1 lost": value, value + b" lost": 1}
    tenant.client.hset(key_of(GOOD, "rates"), mapping=rates)
    other_locks_work(operator)


def inbox_of(tenant):
    """Return the inbox of the only process that waits."""
    [key] = wait_until(lambda: tenant.client.keys(f"{keys_of(GOOD).inboxes}*:alive"))
    return key.removesuffix(b":alive")


def test_a_forged_grant_is_ignored(tenant):
    with locks.lock(GOOD, blocking=False):
        waits = start(locks.lock(GOOD, blocking_timeout=1).acquire)
        inbox = inbox_of(tenant)
        for forged in (b"", b"\xff", b"nan 1 1", b"9" * 5000, b"1 2", b"-1 5 1", b"1 0 1"):
            tenant.client.rpush(inbox, forged)
        wait_until(lambda: not tenant.client.exists(inbox))
        tenant.client.rpush(inbox, b"99999999 5 1")  # without a matching waiter
        assert waits.result(60) is False


@pytest.mark.parametrize("key", [b"", b":alive"])
def test_an_inbox_of_another_type_fails_no_waiter(tenant, key):
    lock, waiter = locks.lock(GOOD, blocking=False), locks.lock(GOOD, blocking_timeout=60)
    assert lock.acquire()
    waits = start(waiter.acquire)
    inbox = inbox_of(tenant)
    tenant.client.delete(inbox + key)
    tenant.client.sadd(inbox + key, b"x")
    lock.release()
    assert waits.result(60)
    locks.force_release(GOOD)


def test_holders_with_odd_tokens_can_be_released(tenant, operator):
    tokens = {f"planted {token!r}": token for token in ("", "a b", "x:y", "é", "x" * 200, "a\nb")}
    for name, token in tokens.items():
        tenant.lock(name, beside=GOOD)
        tenant.client.hset(keys_of(name).lock, f"h:{token}", tenant.holder())
    held = {info.name: info.fence_token for info in locks.active()}
    assert held.keys() == tokens.keys()

    first, second, *others = tokens
    command("release", first, "--yes")
    seen = json.dumps([(second, held[second])])
    operator.post(RELEASE, {"seen": seen, "confirmed": "yes"})
    assert {info.name for info in locks.active()} == {*others}
    command("release", "--all", "--yes")
    assert locks.count() == 0
