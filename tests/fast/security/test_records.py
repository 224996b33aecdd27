"""Another tenant of the server can write to the keys of locks. A record that does not parse is
skipped. It hides no other lock, blocks no other lock, and raises no unexpected error."""

import asyncio
import json
from contextlib import suppress

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import RedisError

from django_redislock import Lock, LockError, locks
from tests.lock_tools import start, waiting
from tests.pages import RELEASE
from tests.tools import wait_until

from .forging import (
    INFOS,
    NAMES,
    NUMBERS,
    STREAMS,
    TYPES,
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
from .looking import as_json, command, ways_to_see, ways_to_see_the_past

pytestmark = pytest.mark.django_db

GOOD = "ours"
BAD = "theirs"
OTHER = "another of ours"
AT_ONCE = 25  # locks. The dashboard shows the 30 that were busiest
FACTS = ("kind", "capacity", "used", "soonest", "latest")
EVENT = ("name", "kind", "token", "how", "at", "holder", "weight", "waited", "info")


@pytest.fixture
def other_locks_work(tenant, operator):
    """Check that our locks in the same bucket can be held, renewed, listed and released, and that
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


def test_records_that_are_known_to_be_hard_to_parse(tenant, other_locks_work):
    records = [tenant.holder(info) for info in INFOS]
    for part in ("weight", "expires", "fence", "acquired", "waited", "lease"):
        records += [tenant.holder(**{part: number}) for number in NUMBERS]
    queued = [tenant.waiter(info) for info in INFOS]
    for part in WAITER:
        queued += [tenant.waiter(**{part: number}) for number in NUMBERS]
    for first in range(0, len(records), AT_ONCE):
        tenant.client.flushdb()
        tenant.lock(BAD, *records, beside=GOOD)
        tenant.queue(BAD, *queued)
        for at, record in enumerate(records[first : first + AT_ONCE]):
            tenant.lock(f"{BAD} {at}", record, beside=GOOD)
            for stream in STREAMS:
                tenant.client.xadd(key_of(GOOD, stream), tenant.event(BAD, record, record))
        other_locks_work()


def test_names_that_are_known_to_be_hard_to_show(tenant, other_locks_work):
    for name in NAMES:
        tenant.lock(name, tenant.holder(), beside=GOOD)

    other_locks_work()


bad_locks = st.tuples(st.lists(holders, max_size=3), invalid(*FACTS))


@fuzzed(3)
@given(st.lists(bad_locks), st.lists(waiters, min_size=3))
def test_holders_and_waiters(tenant, other_locks_work, drawn, queued):
    tenant.client.flushdb()
    for at, (records, facts) in enumerate(drawn):
        records = [tenant.made(tenant.holder, each) for each in records]
        tenant.lock(f"{BAD} {at}" if at else BAD, *records, beside=GOOD, **facts)
    tenant.queue(BAD, *(tenant.made(tenant.waiter, each) for each in queued))
    other_locks_work()


parts = st.sampled_from(["lock", "queue", "waiting"])


@fuzzed(2)
@given(
    st.dictionaries(parts, st.sampled_from(TYPES), min_size=1),
    st.sampled_from([1, 1e13, 1e16, float("inf")]),
)
def test_keys_of_another_type(tenant, other_locks_work, kinds, score):
    tenant.client.flushdb()
    for part, kind in kinds.items():
        tenant.of_type(kind, key_of(BAD, part))
    tenant.client.zadd(key_of(BAD, "index"), {BAD: score})
    other_locks_work()


scores = st.sampled_from([1, 1e13, 1e15, 2.0**53, float("inf")])


@fuzzed(2)
@given(st.dictionaries(st.sampled_from(NAMES) | raws, scores, min_size=3))
def test_names(tenant, other_locks_work, names):
    tenant.client.flushdb()
    for name, score in names.items():
        tenant.lock(name, tenant.holder(), beside=GOOD)
        tenant.client.zadd(key_of(GOOD, "index"), {name: score})
    other_locks_work()


records = holders | st.just(b"")
missing = st.sets(st.sampled_from(EVENT), max_size=2)
events = st.tuples(st.sampled_from(STREAMS), records, infos, invalid(*EVENT), missing)
rates = st.dictionaries(raws | numbers.map(lambda number: f"{number} lost"), raws | numbers)


@fuzzed(2)
@given(st.lists(events, min_size=3), rates)
def test_history(tenant, other_locks_work, drawn, counts):
    tenant.client.flushdb()
    for stream, record, info, bad_fields, without in drawn:
        fields = tenant.event(BAD, tenant.made(tenant.holder, record), info) | bad_fields
        fields = {name: fields[name] for name in fields if name not in without}
        tenant.client.xadd(key_of(GOOD, stream), fields)
    if counts:
        tenant.client.hset(key_of(GOOD, "rates"), mapping=counts)
    other_locks_work()


USES = {
    "acquire": lambda held: locks.lock(OTHER).acquire(blocking=False),
    "release": lambda held: held.release(),
    "extend": lambda held: held.extend(5),
    "wait": lambda held: locks.lock(GOOD).acquire(blocking_timeout=0.05),
    "hand over": lambda held: hand_over(held),
    "active": lambda held: list(locks.active()),
    "page": lambda held: locks.page(),
    "page of a pattern": lambda held: locks.page("*"),
    "count": lambda held: locks.count(),
    "get": lambda held: locks.get(GOOD),
    "queue": lambda held: locks.queue(GOOD),
    "history": lambda held: locks.history(),
    "rates": lambda held: locks.rates(),
    "force_release": lambda held: locks.force_release(GOOD),
    "force_release of another": lambda held: locks.force_release(OTHER),
    "ping": lambda held: locks.ping(),
    "health": lambda held: healthy(),
}


def healthy():
    assert locks.health().get("locking").status == "ok"


def hand_over(held):
    waits = start(locks.lock(GOOD, blocking_timeout=60).acquire)
    waiting(locks, GOOD, 1)
    held.release()
    assert waits.result(60)


@pytest.mark.parametrize(("number", "use"), [*enumerate(USES)])
def test_a_key_of_a_bucket_of_another_type_breaks_nothing(tenant, number, use):
    """The first use of the bucket deletes it, so that the next ones find it as they need it."""
    for part in ("index", *STREAMS, "rates"):
        number += 1
        kind = TYPES[number % len(TYPES)]
        tenant.client.flushdb()
        held = locks.lock(GOOD, auto_renewal=False)
        assert held.acquire()
        tenant.of_type(kind, key_of(GOOD, part))

        USES[use](held)

        for name in (GOOD, OTHER):
            locks.force_release(name)
        for _ in range(2):  # events of the first one may get lost
            with locks.lock(GOOD, blocking=False), locks.lock(OTHER, blocking=False):
                assert {info.name for info in locks.active()} == {GOOD, OTHER}
                assert locks.page().total == 2
        assert locks.history(GOOD)[0].outcome == "released"
        assert as_json("history")
        assert sum(locks.rates().counts["acquired"])
        assert locks.count() == 0


@pytest.mark.parametrize("score", [2.0**53, 1e300, float("inf")])
def test_a_fencing_token_that_cannot_grow_is_ignored(tenant, score):
    tenant.client.zadd(key_of(GOOD, "index"), {"": score})

    with locks.lock(GOOD) as lock:
        first = lock.fence_token
    with locks.lock(GOOD) as lock:
        assert first < lock.fence_token < 2**53


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


def test_waiters_of_another_version_do_not_block_a_lock(tenant):
    with locks.lock(GOOD):
        tenant.queue(GOOD, tenant.waiter(format="3"))
        waits = start(locks.lock(GOOD, blocking_timeout=60).acquire)
        waiting(locks, GOOD, 1)
    assert waits.result(60)
    locks.force_release(GOOD)


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


def test_a_client_that_decodes_responses(tenant, settings):
    url = settings.CACHES["default"]["LOCATION"]
    options = {"decode_responses": True}
    settings.CACHES = {**settings.CACHES, "decoded": {**settings.CACHES["default"]}}
    settings.CACHES["decoded"]["OPTIONS"] = options
    decoded = locks.using("decoded")
    tenant.lock(BAD, tenant.holder(b"\xff"), beside=GOOD, kind=b"\xfe")
    tenant.lock(b"\xff", tenant.holder(), beside=GOOD)
    tenant.client.xadd(key_of(GOOD, "broken"), tenant.event(BAD, tenant.holder(b"\xff")))
    tenant.client.rpush(f"{keys_of(GOOD).inboxes}one", b"\xff")

    with decoded.lock(GOOD, blocking=False) as lock:
        assert GOOD in {info.name for info in decoded.active()}
        assert GOOD in {info.name for info in asyncio.run(_actives(decoded))}
        assert decoded.history() is not None
        assert lock.owned()
        assert not decoded.lock(GOOD).acquire(blocking_timeout=0.01, token="turn")
        assert not asyncio.run(decoded.lock(GOOD).aacquire(blocking_timeout=0.01, token="turn"))
        assert decoded.health().get("locking").status == "ok"
        assert asyncio.run(decoded.ahealth()).get("locking").status == "ok"
    with redis.Redis.from_url(url, **options) as client:
        assert Lock(client, "of a client").acquire(blocking=False)
        assert not Lock(client, "of a client").acquire(blocking=False)


async def _actives(manager):
    return [info async for info in manager.aactive()]


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
