"""What the Lua scripts do beyond what the model covers: history, lists, forged records."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import redis
from redis.exceptions import NoScriptError, ResponseError

from django_redislock import LockInfo
from django_redislock.engine.parsing import pairs, parsed
from django_redislock.engine.queries import _lock_infos
from django_redislock.identity import info_text
from django_redislock.keys import BUCKETS, Keys
from django_redislock.lua import (
    ACQUIRE,
    FENCE,
    FORCE,
    HISTORY,
    INSPECT,
    NAMES,
    PAGE,
    QUEUE,
    RELEASE,
    RENEW,
    ROWS,
    Script,
)
from tests.tools import wait_until

KEYS = Keys("scripts")
A = KEYS.of("a")
LEASE = 30_000


Fields = dict[str, str]
Pages = Callable[["Lock", int], Iterator[list[str]]]


class Lock:
    """The scripts, asked about the lock `a` as the engine asks them."""

    def __init__(self, client: redis.Redis, kept: int = 0) -> None:
        self.client = client
        self.kept = kept
        self.info = '{"is":"unread"}'

    def ask(self, script: Script, keys: tuple[str, ...], *args: str | int) -> Any:
        try:
            return self.client.evalsha(script.sha, len(keys), *keys, *args, self.kept)
        except NoScriptError:
            return self.client.eval(script.source, len(keys), *keys, *args, self.kept)

    def acquire(
        self,
        token: str,
        *,
        kind: str = "mutex",
        capacity: int = 1,
        weight: int = 1,
        lease: int = LEASE,
        alive: int = 0,
        predecessor: str = "",
        name: str = "a",
    ) -> Any:
        what = (kind, capacity, weight, lease, 2000, name, token)
        return self.ask(ACQUIRE, KEYS.of(name).all, *what, alive, predecessor, self.info)

    def release(self, token: str, at_least: int = 0, *, fence: int = 0, name: str = "a") -> Any:
        return self.ask(RELEASE, KEYS.of(name).all, name, token, at_least, fence)

    def renew(self, token: str, ms: int, mode: str) -> Any:
        return int(self.ask(RENEW, (A.index, A.locks, A.lock, A.history), mode, f"{token} {ms}"))

    def fence(self, token: str, fence: int) -> Any:
        return self.ask(FENCE, (A.index, A.lock, A.history), "a", token, fence)

    def force(self, token: str = "") -> Any:
        return self.ask(FORCE, A.all, "a", f"h:{token}" if token else "")

    def inspect(self, start: str, told: str, limit: int) -> Any:
        answer = self.ask(INSPECT, KEYS.inspect(A.bucket), start, told, limit)
        _, *cursor, rows = parsed(answer)
        return [*cursor, [name for name, *_ in rows]]

    def rows(self, *names: str) -> list[LockInfo]:
        return _lock_infos(*self.ask_rows(*names))

    def ask_rows(self, *names: str) -> Any:
        locks = [KEYS.of(name) for name in names]
        keys = [each.lock for each in locks] + [each.waiting for each in locks]
        return parsed(self.ask(ROWS, (*keys, A.history), *names))

    def names(self, limit: int, start: str = "", told: str = "") -> tuple[int, list[str]]:
        held, _, names = self.page_of_names(start, told, limit)
        return held, names

    def page_of_names(self, start: str, told: str, limit: int) -> Any:
        answer = self.ask(NAMES, KEYS.history(A.bucket), limit, start, told)
        [[held, *cursor, flat]] = parsed(answer)
        return held, cursor, list(pairs(flat))

    def page(self, start: int, stop: int) -> tuple[int, list[str]]:
        """Of all buckets how many there are, and the names of a page."""
        buckets = chain.from_iterable(map(KEYS.inspect, range(BUCKETS)))
        _, total, rows = parsed(self.ask(PAGE, tuple(buckets), start, stop))
        return total, [name for name, *_ in rows]

    def queue(self, limit: int = 10) -> list[str]:
        _, rows = parsed(self.ask(QUEUE, (A.queue, A.waiting, A.history), limit))
        standing = self.client.zrange(A.queue, 0, -1, withscores=True)
        tokens = {came: token for token, came in standing}
        return [tokens[float(came)] for came, _ in rows]

    def past(self, name: str = "", limit: int = 10) -> tuple[list[Fields], list[Fields], Fields]:
        """What ended and what was refused, the latest first, and the rates."""
        streams, _ = self.read_history(name, limit)
        _, rates = self.read_history(name, 0, before="")
        ended, broken, refused = ([pairs(entry) for entry in stream[2]] for stream in streams)
        return ended + broken, refused, pairs(rates)

    def read_history(
        self,
        name: str = "",
        count: int = 10,
        *,
        brief: int = 0,
        before: str = "+",
        age: int | str = "",
    ) -> Any:
        """The answers for the streams, each read from `before` on, and the rates."""
        args = (name, count, brief, *[before, age] * 3)
        _, *streams, rates = parsed(self.ask(HISTORY, KEYS.history(A.bucket), *args))
        return streams, rates

    def ends(self) -> list[tuple[str, str]]:
        """Whose holdings ended, and how: those that did as they should, then the others."""
        ended, _, _ = self.past()
        in_order = sorted(ended, key=lambda each: (each["how"] == "lost", int(each["at"])))
        return [(each["token"], each["how"]) for each in in_order]

    def counts(self) -> Counter[str]:
        _, _, rates = self.past()
        counted: Counter[str] = Counter()
        for field, times in rates.items():
            counted[field.split()[1]] += int(times)
        return counted

    def holders(self) -> list[str]:
        return sorted(each.token for info in self.rows("a") for each in info.holders)

    def waiters(self) -> list[str]:
        return self.client.zrange(A.queue, 0, -1)

    def fence_of(self, token: str) -> int:
        return int(self.client.hget(A.lock, f"h:{token}").split()[2])

    def pass_lease(self, token: str) -> None:
        wait_until(lambda: token not in self.holders())


@pytest.fixture
def lock(redis_server: redis.Redis) -> Iterator[Lock]:
    """Without a history."""
    yield Lock(redis_server)
    redis_server.delete(*redis_server.keys("scripts:*"), "none")


@pytest.fixture
def told(lock: Lock) -> Lock:
    """With a history."""
    lock.kept = 1000
    return lock


# acquire


@pytest.mark.parametrize("listed", [1, 9e12])
@pytest.mark.parametrize("last", [1, 9e15, 2**53 - 2, 2**53 - 1, 1e16])
def test_acquire_lists_its_lease_and_its_fencing_token_whatever_was_listed(
    lock: Lock, listed: float, last: float
) -> None:
    lock.client.zadd(A.index, {"a": listed, "": last})
    fence = lock.acquire("x")
    assert (fence > last) is (last < 2**53 - 1)
    assert lock.client.zscore(A.index, "a") == int(lock.client.hget(A.lock, "latest"))
    assert lock.client.zscore(A.index, "") == fence == lock.fence_of("x")


def test_acquire_forgets_what_ran_out_faster_than_it_comes(lock: Lock) -> None:
    lock.client.zadd(A.index, {f"gone {number}": 1 for number in range(500)})

    def forgot_all() -> bool:
        lock.acquire("x")
        lock.release("x")
        return not lock.client.exists(A.lock) and lock.client.zrange(A.index, 0, -1) == [""]

    wait_until(forgot_all, interval=0)


def test_acquire_that_takes_over_counts_once_although_its_own_last_lease_ran_out(
    lock: Lock,
) -> None:
    how = {"kind": "semaphore", "capacity": 2}
    lock.acquire("x", **how)
    lock.acquire("y", lease=50, **how)
    wait_until(lambda: lock.holders() == ["x"])
    assert lock.acquire("y", predecessor="x", **how) < 0
    assert lock.client.hget(A.lock, "used") == "1"


def test_acquire_that_takes_over_stands_in_the_queue_no_longer(lock: Lock) -> None:
    lock.acquire("x")
    lock.acquire("y", alive=5000)
    assert lock.acquire("y", alive=5000, predecessor="x") < 0
    assert lock.waiters() == []


def test_acquire_takes_over_a_turn_that_its_predecessor_does_not_know_of(lock: Lock) -> None:
    lock.acquire("x")
    lock.acquire("y", alive=5000)
    lock.release("x")
    assert lock.acquire("z", predecessor="y") < 0
    assert lock.client.exists(A.grant("y")) == 0


def test_acquire_takes_over_neither_another_weight_nor_a_cooldown(lock: Lock) -> None:
    how = {"kind": "semaphore", "capacity": 3}
    lock.acquire("x", weight=2, **how)
    lock.acquire("other", **how)
    assert lock.acquire("y", weight=1, predecessor="x", **how) == 0
    assert [lock.release("x", LEASE) for _ in range(2)] == [1, 1], "a repeated call is harmless"
    for each in ({"token": "x"}, {"token": "y", "predecessor": "x"}):
        assert lock.acquire(**each, weight=2, **how) == 0
    assert lock.holders() == ["other", "x"]


def test_acquire_that_stops_waiting_admits_the_waiters_on_both_sides(lock: Lock) -> None:
    how = {"kind": "semaphore", "capacity": 3}
    lock.acquire("x", weight=3, lease=50, **how)
    for token, weight in {"a": 2, "b": 3, "c": 1}.items():
        lock.acquire(token, weight=weight, alive=5000, **how)
    wait_until(lambda: not lock.client.exists(A.lock))
    assert lock.acquire("b", weight=3, **how) == 0
    assert (lock.holders(), lock.waiters()) == (["a", "c"], [])


@pytest.mark.parametrize("alive", [0, 5000])
def test_acquire_that_is_not_let_in_says_how_many_may_be_from_now_on(
    lock: Lock, alive: int
) -> None:
    lock.acquire("x", kind="semaphore", capacity=2)
    lock.acquire("y", kind="semaphore", capacity=2)
    lock.acquire("z", kind="semaphore", capacity=2, alive=5000)
    assert lock.acquire("w", kind="semaphore", capacity=1, alive=alive) == 0
    lock.release("x")
    assert lock.holders() == ["y"]
    lock.release("y")
    assert lock.holders() == ["z"]


def test_acquire_confirms_a_grant(lock: Lock) -> None:
    first = lock.acquire("x")
    lock.acquire("y", alive=5000)
    lock.release("x")
    assert lock.client.lrange(A.grant("y"), 0, -1) == [str(lock.fence_of("y"))]
    turn = int(lock.client.hget(A.lock, "latest"))
    assert lock.client.pexpiretime(A.grant("y")) == turn - 1, "a key stays for its last ms"
    assert lock.client.pttl(A.lock) <= 2000, "until it is confirmed"
    assert lock.acquire("y", alive=5000) == lock.fence_of("y")
    assert lock.client.pttl(A.lock) > LEASE - 5000
    assert not lock.client.exists(A.grant("y"))
    assert lock.fence_of("y") > first


@pytest.fixture
def spoilt_queue(lock: Lock) -> Lock:
    """Token x holds the lock; the first waiter has no record, the second an invalid one."""
    lock.acquire("x")
    for token in ("missing", "invalid", "y"):
        lock.acquire(token, alive=LEASE)
    lock.client.hdel(A.waiting, "missing")
    lock.client.hset(A.waiting, "invalid", "of another program")
    return lock


def test_queue_rows_and_release_skip_waiters_without_a_valid_record(spoilt_queue: Lock) -> None:
    assert spoilt_queue.queue() == ["y"]
    [info] = spoilt_queue.rows("a")
    assert info.waiters == 1
    assert spoilt_queue.release("x") == 1
    assert (spoilt_queue.holders(), spoilt_queue.waiters()) == (["y"], [])


def test_acquire_reports_the_kind_of_the_first_waiter_with_a_record(spoilt_queue: Lock) -> None:
    spoilt_queue.renew("x", 10, "set")
    spoilt_queue.pass_lease("x")
    assert spoilt_queue.acquire("w", kind="semaphore", capacity=3) == "mutex"


# release


def test_release_of_a_waiter_answers_0_and_removes_it_from_the_queue(lock: Lock) -> None:
    lock.acquire("x")
    lock.acquire("y", alive=5000)
    assert lock.force("y") == [], "it does not hold it yet"
    assert lock.release("y") == 0
    assert lock.waiters() == []


@pytest.mark.parametrize("at_least", [0, 5000])
def test_release_leaves_it_taken_for_no_longer_where_the_clock_was_set_back(
    lock: Lock, at_least: int
) -> None:
    lock.acquire("x")
    weight, expires, fence, acquired, rest = lock.client.hget(A.lock, "h:x").split(" ", 4)
    acquired = str(int(acquired) + 3_600_000)
    lock.client.hset(A.lock, "h:x", " ".join((weight, expires, fence, acquired, rest)))
    lock.release("x", at_least)
    assert lock.client.pttl(A.lock) <= at_least


def test_release_answers_0_to_who_has_a_record_that_is_too_long(lock: Lock) -> None:
    lock.acquire("x")
    weight, expires, fence, rest = lock.client.hget(A.lock, "h:x").split(" ", 3)
    forged = " ".join((weight, expires, "0" * 100 + fence, rest))
    lock.client.hset(A.lock, "h:x", forged)
    assert lock.release("x") == 0
    assert lock.client.hget(A.lock, "h:x") == forged


# renew


def test_renew_answers_for_each_of_many(lock: Lock) -> None:
    lock.acquire("x")
    verdicts = lock.ask(
        RENEW,
        (A.index, A.locks, A.lock, KEYS.of("q").lock, A.lock, A.history),
        *("renew", f"x {LEASE} x {LEASE} y {LEASE}"),
    )
    left, *nothing = verdicts.split()
    assert int(left) > 0
    assert nothing == ["0", "0"]


BEYOND = "9" * 30
"""What is no time: Redis takes it for none, and Lua's numbers make 1e+30 of it."""

SPOILT = [
    {"kind": ""},
    {"latest": "inf", "used": 2},
    {"latest": "nan", "used": 2},
    {"latest": BEYOND, "used": 2},
    {"used": "inf"},
    {"capacity": "nan"},
    {"soonest": "inf"},
    {"h:x": f"1 {BEYOND} 1 1 0 {LEASE} {{}}"},
]


@pytest.mark.parametrize("fields", SPOILT, ids=str)
def test_renew_of_others_is_not_kept_by_one_that_was_spoilt(lock: Lock, fields: Fields) -> None:
    other = KEYS.of(NEXT_TO_A[0])
    lock.acquire("x")
    lock.acquire("x", name=other.name)
    lock.client.hset(A.lock, mapping=fields)
    verdicts = lock.ask(
        RENEW,
        (A.index, A.locks, A.lock, other.lock, A.history),
        *("renew", f"x {LEASE} x {LEASE}"),
    )
    assert int(verdicts.split()[1]) > 0
    assert isinstance(lock.acquire("y"), int), "nor is who asks for the spoilt one"


def test_what_ran_out_is_forgotten_though_it_was_spoilt(told: Lock) -> None:
    told.acquire("x")
    for number in range(20):
        name = f"a {number}"
        told.client.hset(A.locks + name, mapping={"soonest": 0, "h:x": f"1 {BEYOND} 1 1 0 1 {{}}"})
        told.client.zadd(A.index, {name: 5})
    assert told.names(10) == (1, ["a"])
    assert told.renew("x", LEASE, "renew") > 0
    assert told.client.zcount(A.index, 0, 10) == 0


# fence


def test_fence_answers_1_and_all_later_ones_are_greater(lock: Lock) -> None:
    fence = lock.acquire("x")
    raised = fence + 10**12
    assert [lock.fence("x", raised) for _ in range(2)] == [1, 1]
    assert lock.fence_of("x") == raised
    lock.release("x")
    fence = lock.acquire("y")
    assert fence > raised


def test_fence_changes_nothing_for_a_lower_token_or_for_another_holder(lock: Lock) -> None:
    fence = lock.acquire("x")
    assert lock.fence("x", 5) == 1
    assert lock.fence("y", 2 * fence) == 0
    assert lock.client.zscore(A.index, "") == fence


# force


def test_force_frees_what_is_in_use_by_nobody(lock: Lock) -> None:
    lock.acquire("x")
    lock.client.hdel(A.lock, "h:x")
    assert lock.acquire("y") == 0
    assert lock.force() == []
    assert lock.acquire("y") > 0


# inspect and names


NEXT_TO_A = [name for name in map(str, range(200)) if KEYS.of(name).bucket == A.bucket][:5]


@pytest.fixture
def neighbours(lock: Lock) -> list[str]:
    """The names of five locks of the bucket; three end together, and the others after them."""
    hold_until(lock, dict.fromkeys(NEXT_TO_A[:3], 9e12) | dict.fromkeys(NEXT_TO_A[3:], 9.1e12))
    return sorted(NEXT_TO_A[:3]) + sorted(NEXT_TO_A[3:])


def hold_until(lock: Lock, ends: dict[str, float]) -> None:
    """Acquire each of these names, with a lease that is listed until then."""
    for name, end in ends.items():
        lock.acquire("x", name=name)
        lock.client.zadd(KEYS.of(name).index, {name: end})


def inspected_pages(lock: Lock, limit: int) -> Iterator[list[str]]:
    start, told = "-inf", ""
    while start:
        start, told, names = lock.inspect(start, told, limit)
        yield names


def pages_of_names(lock: Lock, limit: int) -> Iterator[list[str]]:
    cursor, more = ["", ""], True
    while more:
        _, cursor, names = lock.page_of_names(*cursor, limit)
        yield names
        more = bool(cursor[0])


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
@pytest.mark.parametrize("pages", [inspected_pages, pages_of_names])
def test_pages_have_each_name_once(
    lock: Lock, neighbours: list[str], pages: Pages, limit: int
) -> None:
    found = list(pages(lock, limit))
    assert [name for page in found for name in page] == neighbours
    assert len(found) == 5 // limit + 1


@pytest.mark.parametrize("renewed", [[0], [0, 1], [2], [0, 2]])
@pytest.mark.parametrize("pages", [inspected_pages, pages_of_names])
def test_pages_miss_no_name_if_a_lock_is_renewed_between_two_pages(
    lock: Lock, neighbours: list[str], pages: Pages, renewed: list[int]
) -> None:
    found = []
    for page in pages(lock, 2):
        found += page
        if len(found) == 2:
            lock.client.zadd(A.index, {neighbours[place]: 9.2e12 for place in renewed})
    assert set(found) == set(neighbours)


# page


@pytest.mark.parametrize("buckets", [1, 16])
@pytest.mark.parametrize("stop", [0, 1, 7, 100])
def test_a_page_has_those_of_all_buckets_that_end_first(
    lock: Lock, buckets: int, stop: int
) -> None:
    names = [name for name in map(str, range(2000)) if KEYS.of(name).bucket < buckets][:60]
    # As in a shuffled pack: 23 has no factor in common with 60.
    hold_until(lock, {name: 9 * 10**12 + place * 23 % 60 for place, name in enumerate(names)})
    in_order = sorted(names, key=lambda name: names.index(name) * 23 % 60)
    assert lock.page(0, stop) == (60, in_order[:stop])
    assert lock.page(stop // 2, stop) == (60, in_order[stop // 2 : stop])


def test_what_ends_at_one_moment_is_on_one_page_each(lock: Lock) -> None:
    names = list(map(str, range(40)))
    hold_until(lock, dict.fromkeys(names, 9 * 10**12))
    found = [name for start in range(0, 40, 8) for name in lock.page(start, start + 8)[1]]
    assert found == sorted(names, key=lambda name: (KEYS.of(name).bucket, name))


# The history


def test_a_release_that_is_repeated_is_answered_as_the_first(told: Lock) -> None:
    fence = told.acquire("x")
    for _ in range(2):
        assert told.release("x", fence=fence) == 1
        told.acquire("y")
        told.release("y")
    assert [end for end in told.ends() if end[0] == "x"] == [("x", "released")]


def test_a_release_is_not_taken_for_that_of_another_holding(told: Lock) -> None:
    told.acquire("x")
    told.release("x")
    fence = told.acquire("x")
    told.force()
    assert told.release("x", fence=fence) == 0
    assert told.counts()["lost"] == 1


def test_without_a_history_nobody_knows_that_a_release_is_repeated(lock: Lock) -> None:
    fence = lock.acquire("x")
    assert lock.release("x", fence=fence) == 1
    assert lock.release("x", fence=fence) == 0


def test_the_history_leaves_out_a_cooldown_that_is_over(told: Lock) -> None:
    share = {"kind": "semaphore", "capacity": 2}
    told.acquire("x", lease=60, **share)
    told.acquire("y", **share)
    told.release("x", 50)
    told.pass_lease("x")
    told.acquire("z", **share)
    assert told.ends() == [("x", "released")]


def test_a_lock_is_kept_for_an_hour_after_its_lease_but_not_after_a_cooldown(told: Lock) -> None:
    share = {"kind": "semaphore", "capacity": 2}
    told.acquire("x", lease=1000, **share)
    assert 3_600_000 < told.client.pttl(A.lock) <= 3_601_000
    told.acquire("y", **share)
    told.release("y", 1000)
    assert told.client.pttl(A.lock) > 3_600_000, "for the lease of x"
    told.force()
    told.acquire("x")
    told.release("x", 1000)
    assert 0 < told.client.pttl(A.lock) <= 1000


@pytest.mark.parametrize("by", ["release", "renew"])
def test_a_lease_that_ran_out_is_told_by_others_of_its_bucket(told: Lock, by: str) -> None:
    other = KEYS.of(NEXT_TO_A[0])
    told.acquire("x", lease=10)
    wait_until(lambda: int(told.client.hget(A.lock, "latest")) < time.time() * 1000)
    told.client.zadd(A.index, {"long gone": 1})
    if by == "release":
        told.release("nobody", name=other.name)
    else:
        wanted = (other.index, other.locks, other.lock, other.history)
        told.ask(RENEW, wanted, "renew", f"nobody {LEASE}")
    assert told.client.xlen(f"{A.history}broken") == 1
    assert not told.client.exists(A.lock)
    assert told.client.zrange(A.index, 0, -1) == [""]


def test_a_refusal_tells_of_no_wait_where_the_clock_was_set_back(told: Lock) -> None:
    told.acquire("x")
    told.acquire("y", alive=60_000)
    told.client.zadd(A.queue, {"y": time.time() * 1e6 + 3_600_000_000})
    told.acquire("y")
    _, [y], _ = told.past()
    assert y["waited"] == "0"


def test_the_history_of_one_name_is_found_among_others(told: Lock) -> None:
    told.acquire("first")
    told.release("first")
    for number in range(450):
        told.acquire(f"t{number}", name=NEXT_TO_A[0])
        told.release(f"t{number}", fence=1, name=NEXT_TO_A[0])
    told.acquire("last")
    told.release("last")
    assert len(told.past(limit=300)[0]) == 300
    found, before = [], "+"
    for _ in range(5):
        [[more, before, entries, *_], *_], _ = told.read_history("a", 100, before=before)
        found += [pairs(entry)["token"] for entry in entries]
    assert found == ["last", "first"]
    assert more == 0


def test_the_history_is_read_back_to_an_age(told: Lock) -> None:
    told.acquire("x")
    told.release("x")
    [key] = told.client.keys(f"{A.history}ended")
    [(_, fields)] = told.client.xrange(key)
    told.client.delete(key)
    now = int(time.time() * 1000)
    for minutes in (50, 40, 30, 20, 10):
        told.client.xadd(key, fields | {"at": minutes}, id=f"{now - minutes * 60_000}-0")
    [[more, _, entries, length, oldest], *_], _ = told.read_history(age=35 * 60_000, brief=1)
    assert [pairs(entry)["at"] for entry in entries] == ["10", "20", "30"]
    assert more == 0
    assert (length, pairs(oldest)["at"]) == (5, "50")


METADATA = {"a": [1, ',"renewed":', {"metadata": 2, "renewed": 3}], 'b,"metadata":': "c"}


def test_a_brief_history_has_no_metadata(told: Lock) -> None:
    told.info = info_text(METADATA, renewed=True, on_conflict="skip", task=(',"metadata":', '"'))
    told.acquire("x")
    told.acquire("refused")
    told.force()
    told.acquire("y")
    told.release("y")
    told.info = '{"is":"unread"}'
    told.acquire("z")
    told.release("z")
    (ended, broken, refused), _ = told.read_history(brief=1)
    full = json.loads(info_text(METADATA, renewed=True, on_conflict="skip", task=("", "")))
    told_of = full | {"task_name": ',"metadata":', "task_id": '"'}
    del told_of["metadata"]
    z, y = (json.loads(pairs(entry)["holder"].split(" ", 6)[6]) for entry in ended[2])
    assert (z, y) == ({"is": "unread"}, told_of)
    [x] = (json.loads(pairs(entry)["holder"].split(" ", 6)[6]) for entry in broken[2])
    assert x == told_of
    assert [json.loads(pairs(entry)["info"]) for entry in refused[2]] == [told_of]
    assert pairs(ended[4]) == pairs(ended[2][-1])


def test_the_history_is_bounded_and_ordinary_releases_do_not_displace_forced_ones(
    told: Lock,
) -> None:
    told.kept = 100
    told.acquire("x")
    told.force("x")
    for number in range(500):
        told.acquire(f"t{number}")
        told.acquire("refused")
        told.release(f"t{number}")
    for stream in ("ended", "refused"):
        assert 100 <= told.client.xlen(f"{A.history}{stream}") <= 200
    ended, _, _ = told.past(limit=1000)
    assert ("x", "forced") in [(each["token"], each["how"]) for each in ended]


def test_rates_of_the_history_go_after_an_hour(told: Lock) -> None:
    rates = f"{A.history}rates"
    minute = int(time.time() // 60)
    old, young = f"{minute - 61} acquired", f"{minute - 50} acquired"
    told.client.hset(rates, mapping={old: 1, young: 1})
    for token in "xy":
        told.acquire(token)
        told.release(token)
    assert old not in told.client.hgetall(rates)
    assert young in told.client.hgetall(rates)
    assert told.counts() == {"acquired": 3}


def test_what_is_no_record_of_a_holder_is_none_to_acquire_rows_and_force(lock: Lock) -> None:
    lock.acquire("x", kind="semaphore", capacity=2)
    lock.client.hset(A.lock, "h:junk", "of another program")
    assert lock.holders() == ["x"]
    assert lock.acquire("junk", kind="semaphore", capacity=2) > 0
    lock.client.hset(A.lock, "h:junk", "again")
    assert sorted(lock.force()) == ["junk", "x"]
    assert lock.client.hset(A.lock, mapping={"h:junk": "and again", "kind": "mutex"})
    assert lock.acquire("y") > 0
    assert lock.holders() == ["y"]


def test_renew_of_one_lock_is_not_kept_by_another_of_another_type(told: Lock) -> None:
    told.acquire("x")
    told.client.set(f"{A.lock} b", "of another program")
    told.client.zadd(A.index, {"a b": 1})
    assert told.renew("x", LEASE, "renew") > 0
    assert told.client.zscore(A.index, "a b") is None
    assert told.client.exists(f"{A.lock} b")


def test_release_of_what_was_lost_is_told_whatever_the_history_has(told: Lock) -> None:
    fence = told.acquire("x")
    told.force()
    fields = {f"field {number}": number for number in range(5000)}
    told.client.xadd(f"{A.history}ended", fields)
    assert told.release("x", fence=fence) == 0
    ended, _, _ = told.past()
    assert [each["how"] for each in ended if each.get("token") == "x"] == ["lost", "forced"]


def test_names_that_are_too_long_are_left_out(lock: Lock) -> None:
    lock.acquire("x")
    end = lock.client.zscore(A.index, "a")
    lock.client.zadd(A.index, {"a" * 513: end, "a" * 512: end})
    assert lock.names(10) == (3, ["a", "a" * 512])


def test_rows_pass_on_what_may_not_be_read(lock: Lock) -> None:
    lock.acquire("x")
    lock.acquire("y", alive=5000)
    rules = {"keys": "*", "commands": ["+@all", "-hvals"]}
    lock.client.acl_setuser("half", enabled=True, nopass=True, **rules)
    told = lock.client.connection_pool.connection_kwargs
    half = redis.Redis(host=told["host"], port=told["port"], username="half")
    with half, pytest.raises(ResponseError, match=r"hvals|permission"):
        Lock(half).rows("a")
    lock.client.acl_deluser("half")
