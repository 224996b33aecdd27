"""The contracts of the Lua scripts that the model does not cover: history, listings, bad data."""

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import NoScriptError, ResponseError

from django_redislock import LockInfo
from django_redislock.engine.history import STREAMS
from django_redislock.engine.parsing import pairs
from django_redislock.engine.queries import _lock_infos, lock_rows
from django_redislock.identity import payload_text
from django_redislock.keys import Keys
from django_redislock.lua import (
    ACQUIRE,
    FENCE,
    FORCE,
    HEARTBEAT,
    HISTORY,
    LAST_RUNS,
    NAMES,
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

INBOX = "aninbox"


Fields = dict[str, str]


class Lock:
    """Calls the scripts for the lock `a`, with the arguments that the engine passes."""

    def __init__(self, client: redis.Redis, max_events: int = 0) -> None:
        self.client = client
        self.max_events = max_events
        self.info = '{"is":"unread"}'

    def ask(self, script: Script, keys: tuple[str, ...], *args: str | int) -> Any:
        try:
            return self.client.evalsha(script.sha, len(keys), *keys, *args, self.max_events)
        except NoScriptError:
            return self.client.eval(script.source, len(keys), *keys, *args, self.max_events)

    def acquire(
        self,
        token: str,
        *,
        kind: str = "mutex",
        capacity: int = 1,
        weight: int = 1,
        lease: int = LEASE,
        heartbeat: int = 0,
        predecessor: str = "",
        name: str = "a",
    ) -> Any:
        terms = f"{kind} {capacity} {weight} {lease} 2000 {heartbeat} {INBOX} 1 1 {predecessor}"
        return self.ask(ACQUIRE, KEYS.of(name).all, name, token, terms, self.info)

    def release(
        self,
        token: str,
        at_least: int = 0,
        *,
        fence: int = 0,
        how: str = "released",
        name: str = "a",
    ) -> Any:
        return self.ask(RELEASE, KEYS.of(name).all, name, token, at_least, fence, how)

    def heartbeat(self, *tokens: str, epoch: int = 2) -> list[str]:
        """The tokens that are not in the queue."""
        keys = A.index, A.inboxes, A.locks, A.lock, A.queue, A.waiting, A.history
        missing: str = self.ask(HEARTBEAT, keys, INBOX, epoch, 1750, " ".join(tokens))
        return missing.split()

    def renew(self, token: str, ms: int, mode: str) -> Any:
        return int(self.ask(RENEW, (A.index, A.locks, A.lock, A.history), mode, f"{token} {ms}"))

    def fence(self, token: str, fence: int) -> Any:
        return self.ask(FENCE, (A.index, A.lock, A.history), "a", token, fence)

    def force(self, token: str = "") -> Any:
        return self.ask(FORCE, A.all, "a", f"h:{token}" if token else "", "", "")

    def rows(self, *names: str) -> list[LockInfo]:
        locks = [KEYS.of(name) for name in names]
        return list(_lock_infos(locks, *json.loads(self.ask_rows(*names))).values())

    def ask_rows(self, *names: str) -> Any:
        return self.ask(ROWS, lock_rows([KEYS.of(name) for name in names]).keys)

    def names(
        self, limit: int = 10, cursor: str = "0", order: str = "scan"
    ) -> tuple[str, int, list[str]]:
        """The next cursor, how many locks are held, and its next names."""
        reply = self.ask(NAMES, KEYS.all, order, limit, cursor)
        cursor, total, held = json.loads(reply)
        return cursor, total, [name for name, _ in held]

    def queue(self, limit: int = 10) -> list[str]:
        reply = self.ask(QUEUE, (A.queue, A.waiting, A.inboxes, A.history), limit)
        _, rows = json.loads(reply)
        members = self.client.zrange(A.queue, 0, -1, withscores=True)
        tokens = {came: token for token, came in members}
        return [tokens[float(came)] for came, *_ in rows]

    def history(
        self, name: str = "", limit: int = 10
    ) -> tuple[list[Fields], list[Fields], Fields]:
        """The holds that ended, the refusals, each with the newest first, and the rates."""
        streams = [
            self.read_stream(each, name, limit)[1] for each in ("ended", "broken", "refused")
        ]
        ended, broken, refused = ([pairs(entry) for entry in entries] for entries in streams)
        _, rates = self.read_stream("rates")
        return ended + broken, refused, pairs(rates)

    def read_stream(
        self,
        stream: str,
        name: str = "",
        count: int = 10,
        *,
        before: str = "+",
        age: int | str = "",
        metadata: int = 1,
    ) -> Any:
        args = (stream, name, count, before, age, metadata)
        return json.loads(self.ask(HISTORY, KEYS.all, *args))

    def ends(self) -> list[tuple[str, str]]:
        """The token and the end of each hold: intended ends first, then the others."""
        ended, _, _ = self.history()
        in_order = sorted(ended, key=lambda each: (each["how"] == "lost", int(each["at"])))
        return [(each["token"], each["how"]) for each in in_order]

    def counts(self) -> Counter[str]:
        _, _, rates = self.history()
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
    """The scripts without a history."""
    yield Lock(redis_server)
    redis_server.delete(*redis_server.keys("{scripts}:*"), "none")


@pytest.fixture
def recorded(lock: Lock) -> Lock:
    """The scripts with a history."""
    lock.max_events = 1000
    return lock


# acquire


@pytest.mark.parametrize("listed", [1, 9e12])
@pytest.mark.parametrize("last", [1, 9e15, 2**53 - 2, 2**53 - 1, 1e16, float("inf")])
def test_acquire_updates_the_index_whatever_its_scores_were(
    lock: Lock, listed: float, last: float
) -> None:
    lock.client.zadd(A.index, {"a": listed, "": last})
    fence = lock.acquire("x")
    assert (fence > last) is (last < 2**53 - 1)
    assert lock.client.zscore(A.index, "a") == int(lock.client.hget(A.lock, "latest"))
    assert lock.client.zscore(A.index, "") == fence == lock.fence_of("x")


def test_acquire_removes_expired_locks_faster_than_new_ones_come(lock: Lock) -> None:
    lock.client.zadd(A.index, {f"expired {number}": 1 for number in range(500)})

    def all_removed() -> bool:
        lock.acquire("x")
        lock.release("x")
        return not lock.client.exists(A.lock) and lock.client.zrange(A.index, 0, -1) == [""]

    wait_until(all_removed, interval=0)


def test_a_takeover_replaces_the_predecessor_and_overtakes_the_waiters(lock: Lock) -> None:
    lock.acquire("x")
    lock.acquire("y", heartbeat=5000)
    for _ in range(2):  # a repeated call has the same reply
        assert lock.acquire("z", predecessor="x") == -lock.fence_of("z")
    assert (lock.holders(), lock.waiters()) == (["z"], ["y"])


def test_a_takeover_needs_the_same_weight_and_a_running_lease(lock: Lock) -> None:
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
        lock.acquire(token, weight=weight, heartbeat=5000, **how)
    wait_until(lambda: not lock.client.exists(A.lock))
    assert lock.acquire("b", weight=3, **how) == 0
    assert (lock.holders(), lock.waiters()) == (["a", "c"], [])


@pytest.mark.parametrize("heartbeat", [0, 5000])
def test_a_refused_or_queued_acquire_sets_the_capacity(lock: Lock, heartbeat: int) -> None:
    lock.acquire("x", kind="semaphore", capacity=2)
    lock.acquire("y", kind="semaphore", capacity=2)
    lock.acquire("z", kind="semaphore", capacity=2, heartbeat=5000)
    assert lock.acquire("w", kind="semaphore", capacity=1, heartbeat=heartbeat) == 0
    lock.release("x")
    assert lock.holders() == ["y"]
    lock.release("y")
    assert lock.holders() == ["z"]


def test_acquire_confirms_a_grant(lock: Lock) -> None:
    first = lock.acquire("x")
    lock.acquire("y", heartbeat=5000)
    lock.release("x")
    assert lock.client.lrange(A.inboxes + INBOX, 0, -1) == [f"1 {lock.fence_of('y')} 1"]
    assert 0 < lock.client.pttl(A.inboxes + INBOX) <= 2000
    assert lock.client.pttl(A.lock) <= 2000, "until it is confirmed"
    assert lock.acquire("y", heartbeat=5000) == lock.fence_of("y")
    assert lock.client.pttl(A.lock) > LEASE - 5000
    assert lock.fence_of("y") > first


def test_a_heartbeat_hands_over_an_expired_lock_and_reports_missing_waiters(lock: Lock) -> None:
    lock.acquire("x", lease=50)
    lock.acquire("y", heartbeat=5000)
    assert lock.heartbeat("y", "gone") == ["gone"]
    lock.pass_lease("x")
    assert lock.heartbeat("y", epoch=3) == []
    assert lock.client.lrange(A.inboxes + INBOX, 0, -1) == [f"1 {lock.fence_of('y')} 3"]
    assert lock.heartbeat("y", epoch=4) == ["y"], "it holds the lock"


def test_a_heartbeat_hands_over_if_the_hash_of_the_lock_has_expired(lock: Lock) -> None:
    lock.acquire("x", lease=50)
    lock.acquire("y", heartbeat=5000)
    wait_until(lambda: not lock.client.exists(A.lock))
    lock.heartbeat()
    assert lock.holders() == ["y"]


@pytest.fixture
def bad_queue(lock: Lock) -> Lock:
    """Token x holds the lock; the first waiter has no record, the second an invalid one."""
    lock.acquire("x")
    for token in ("missing", "invalid", "y", "z"):
        lock.acquire(token, heartbeat=LEASE)
    lock.client.hdel(A.waiting, "missing")
    lock.client.hset(A.waiting, "invalid", "of another program")
    return lock


def test_queue_rows_and_release_skip_waiters_without_a_valid_record(bad_queue: Lock) -> None:
    assert (bad_queue.queue(), bad_queue.queue(limit=1)) == (["y", "z"], ["y"])
    an_hour_ago = time.time_ns() / 1000 - 3_600_000_000
    bad_queue.client.zadd(A.queue, {"missing": an_hour_ago, "invalid": an_hour_ago})
    [info] = bad_queue.rows("a")
    assert info.waiters == 2
    assert 0 <= info.longest_wait < 1800
    bad_queue.client.zadd(A.queue, {"y": an_hour_ago})
    [info] = bad_queue.rows("a")
    assert 3599 <= info.longest_wait < 5400
    assert bad_queue.release("x") == 1
    assert (bad_queue.holders(), bad_queue.waiters()) == (["y"], ["z"])


@pytest.mark.parametrize("score", ["-inf", "+inf", "-1", None])
def test_a_waiter_with_a_wrong_arrival_has_not_waited(lock: Lock, score: str | None) -> None:
    lock.acquire("x")
    lock.acquire("y", heartbeat=LEASE)
    if score:
        lock.client.zadd(A.queue, {"y": score})
    else:
        lock.client.delete(A.queue)
    [info] = lock.rows("a")
    assert (info.waiters, info.longest_wait) == (1, 0.0)


def test_acquire_reports_the_kind_of_the_first_waiter_with_a_record(bad_queue: Lock) -> None:
    bad_queue.renew("x", 10, "set")
    bad_queue.pass_lease("x")
    assert bad_queue.acquire("w", kind="semaphore", capacity=3) == "mutex"
    assert bad_queue.acquire("y", heartbeat=LEASE) == bad_queue.fence_of("y")


# release


def test_release_of_a_waiter_replies_0_and_removes_it_from_the_queue(lock: Lock) -> None:
    lock.acquire("x")
    lock.acquire("y", heartbeat=5000)
    assert lock.force("y") == [], "it does not hold it yet"
    assert lock.release("y") == 0
    assert lock.waiters() == []


@pytest.mark.parametrize("at_least", [0, 5000])
def test_a_cooldown_does_not_grow_if_the_clock_was_set_back(lock: Lock, at_least: int) -> None:
    lock.acquire("x")
    weight, expires, fence, acquired, rest = lock.client.hget(A.lock, "h:x").split(" ", 4)
    acquired = str(int(acquired) + 3_600_000)
    lock.client.hset(A.lock, "h:x", " ".join((weight, expires, fence, acquired, rest)))
    lock.release("x", at_least)
    assert lock.client.pttl(A.lock) <= at_least


def set_back(lock: Lock, *tokens: str, ms: int = 3_600_000) -> None:
    """Change what the server stores as if its clock had been set back."""

    def later(time: str) -> str:
        return str(int(time) + ms)

    for token in tokens:
        record = lock.client.hget(A.lock, f"h:{token}")
        weight, expires, fence, acquired, rest = record.split(" ", 4)
        record = " ".join((weight, later(expires), fence, later(acquired), rest))
        lock.client.hset(A.lock, f"h:{token}", record)
    for field in ("soonest", "latest", "released"):
        if before := lock.client.hget(A.lock, field):
            lock.client.hset(A.lock, field, later(before))
    lock.client.pexpire(A.lock, lock.client.pttl(A.lock) + ms)
    lock.client.zadd(A.index, {"a": later(lock.client.hget(A.lock, "latest"))})


@pytest.mark.parametrize("by", ["acquire", "acquire with its token", "heartbeat"])
def test_a_cooldown_begins_again_if_the_clock_was_set_back(lock: Lock, by: str) -> None:
    lock.acquire("x")
    assert lock.release("x", 500) == 1
    set_back(lock, "x")
    if by == "heartbeat":
        assert lock.acquire("y", heartbeat=60_000) == 0
        set_back(lock, "x")
        lock.heartbeat("y")
    else:
        assert lock.acquire("y" if by == "acquire" else "x") == 0
    [info] = lock.rows("a")
    assert 0 < info.ttl <= 0.5
    lock.pass_lease("x")
    assert lock.acquire("z" if by != "heartbeat" else "y", heartbeat=60_000) > 0


def test_a_release_after_the_clock_was_set_back_begins_a_cooldown(lock: Lock) -> None:
    lock.acquire("x")
    set_back(lock, "x")
    assert lock.release("x", 5000) == 1
    assert lock.acquire("y") == 0
    [info] = lock.rows("a")
    assert 4 < info.ttl <= 5


def test_a_cooldown_goes_on_if_the_clock_was_set_back_by_less_than_the_hold(lock: Lock) -> None:
    """What is left of it is still at most `at_least_for`."""
    lock.acquire("x")
    weight, expires, fence, acquired, rest = lock.client.hget(A.lock, "h:x").split(" ", 4)
    acquired = str(int(acquired) - 3_600_000)
    lock.client.hset(A.lock, "h:x", " ".join((weight, expires, fence, acquired, rest)))
    assert lock.release("x", 3_600_000 + 60_000) == 1
    set_back(lock, ms=1000)
    before = lock.client.hgetall(A.lock)
    assert lock.acquire("y") == 0
    assert lock.client.hgetall(A.lock) == before


def test_a_lease_stays_if_the_clock_was_set_back(lock: Lock) -> None:
    how: dict[str, Any] = {"kind": "semaphore", "capacity": 2}
    lock.acquire("x", **how)
    lock.acquire("y", **how)
    assert lock.release("y", 500) == 1
    set_back(lock, "x", "y")
    before = lock.client.hget(A.lock, "h:x")
    assert lock.acquire("z", **how) == 0
    assert lock.client.hget(A.lock, "h:x") == before
    lock.pass_lease("y")
    assert lock.acquire("z", **how) > 0
    assert lock.holders() == ["x", "z"]


def test_release_replies_0_if_the_record_is_too_long(lock: Lock) -> None:
    lock.acquire("x")
    weight, expires, fence, rest = lock.client.hget(A.lock, "h:x").split(" ", 3)
    forged = " ".join((weight, expires, "0" * 100 + fence, rest))
    lock.client.hset(A.lock, "h:x", forged)
    assert lock.release("x") == 0
    assert lock.client.hget(A.lock, "h:x") == forged


# renew


def test_renew_replies_for_each_lock(lock: Lock) -> None:
    lock.acquire("x")
    results = lock.ask(
        RENEW,
        (A.index, A.locks, A.lock, KEYS.of("q").lock, A.lock, A.history),
        *("renew", f"x {LEASE} x {LEASE} y {LEASE}"),
    )
    left, *rest = results.split()
    assert int(left) > 0
    assert rest == ["0", "0"]


BEYOND = "9" * 30
"""Too large for a time. Lua converts it to 1e+30."""

BAD_FIELDS = [
    {"kind": ""},
    {"latest": "inf", "used": 2},
    {"latest": "nan", "used": 2},
    {"latest": BEYOND, "used": 2},
    {"used": "inf"},
    {"capacity": "nan"},
    {"soonest": "inf"},
    {"h:x": f"1 {BEYOND} 1 1 0 {LEASE} {{}}"},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_a_bad_lock_does_not_block_the_renewal_of_another(lock: Lock, fields: Fields) -> None:
    other = KEYS.of(OTHERS[0])
    lock.acquire("x")
    lock.acquire("x", name=other.name)
    lock.client.hset(A.lock, mapping=fields)
    results = lock.ask(
        RENEW,
        (A.index, A.locks, A.lock, other.lock, A.history),
        *("renew", f"x {LEASE} x {LEASE}"),
    )
    assert int(results.split()[1]) > 0
    assert isinstance(lock.acquire("y"), int), "and the bad lock can be asked for"


def test_expired_locks_with_bad_records_are_removed(recorded: Lock) -> None:
    recorded.acquire("x")
    for number in range(20):
        name = f"a {number}"
        recorded.client.hset(
            A.locks + name, mapping={"soonest": 0, "h:x": f"1 {BEYOND} 1 1 0 1 {{}}"}
        )
        recorded.client.zadd(A.index, {name: 5})
    assert recorded.names() == ("0", 1, ["a"])
    assert recorded.renew("x", LEASE, "renew") > 0
    assert recorded.client.zcount(A.index, 0, 10) == 0


# fence


def test_fence_replies_1_and_all_later_tokens_are_larger(lock: Lock) -> None:
    fence = lock.acquire("x")
    raised = fence + 10**12
    assert [lock.fence("x", raised) for _ in range(2)] == [1, 1]
    assert lock.fence_of("x") == raised
    lock.release("x")
    fence = lock.acquire("y")
    assert fence > raised


def test_fence_keeps_the_index_for_a_smaller_token_or_another_holder(lock: Lock) -> None:
    fence = lock.acquire("x")
    assert lock.fence("x", 5) == 1
    assert lock.fence("y", 2 * fence) == 0
    assert lock.client.zscore(A.index, "") == fence


# force


def test_force_finds_holders_by_a_chosen_or_a_stored_token(lock: Lock) -> None:
    stored = ["x:1", "x:2", "x", "xy:1", "y:x:1"]
    for token in stored:
        lock.acquire(token, kind="semaphore", capacity=5)
    assert lock.force("x:2") == ["x:2"]
    assert sorted(lock.force("x")) == ["x", "x:1"]
    assert lock.force("x") == []
    assert lock.force("y") == ["y:x:1"]
    assert lock.force("xy:1") == ["xy:1"]


def test_force_frees_weight_without_a_holder(lock: Lock) -> None:
    lock.acquire("x")
    lock.client.hdel(A.lock, "h:x")
    assert lock.acquire("y") == 0
    assert lock.force() == []
    assert lock.acquire("y") > 0


# names


OTHERS = [*map(str, range(400))]


def hold_with_score(lock: Lock, ends: dict[str, float]) -> None:
    """Acquire each of these names, and set its score in the index."""
    for name, end in ends.items():
        lock.acquire("x", name=name)
        lock.client.zadd(KEYS.of(name).index, {name: end})


@pytest.mark.parametrize("count", [5, 400])
def test_a_scan_finds_each_name_although_a_lock_is_renewed(lock: Lock, count: int) -> None:
    hold_with_score(lock, dict.fromkeys(OTHERS[:count], 9e12))
    cursor, _, found = lock.names()
    while cursor != "0":
        lock.client.zadd(A.index, {found[0]: 9.2e12})
        cursor, total, names = lock.names(cursor=cursor)
        assert total == count
        assert len(names) < 50
        found += names
    assert sorted(found) == sorted(OTHERS[:count])


def test_a_scan_leaves_out_the_fencing_token_and_scores_that_are_not_times(lock: Lock) -> None:
    lock.acquire("x")
    lock.client.zadd(A.index, {"infinite": float("inf"), "a fencing token": 1e15, "expired": 1})
    for order in ("scan", "sorted"):
        assert lock.names(order=order) == ("0", 1, ["a"])


@pytest.mark.parametrize("limit", [0, 1, 7, 60, 100])
def test_sorted_names_have_the_locks_that_expire_first(lock: Lock, limit: int) -> None:
    names = OTHERS[:60]
    # As in a shuffled pack: 23 has no factor in common with 60.
    hold_with_score(lock, {name: 9 * 10**12 + place * 23 % 60 for place, name in enumerate(names)})
    in_order = sorted(names, key=lambda name: names.index(name) * 23 % 60)
    cursor, total, found = lock.names(limit, order="sorted")
    assert (total, found) == (60, in_order[:limit])
    while limit and cursor != "0":
        cursor, total, more = lock.names(limit, cursor, "sorted")
        found += more
    assert (total, found[limit:]) == (60, in_order[limit:] if limit else [])


# The history


def test_a_repeated_release_gets_the_same_reply(recorded: Lock) -> None:
    fence = recorded.acquire("x")
    for _ in range(2):
        assert recorded.release("x", fence=fence) == 1
        recorded.acquire("y")
        recorded.release("y")
    assert [end for end in recorded.ends() if end[0] == "x"] == [("x", "released")]


def test_a_loss_replaces_the_expiry_that_it_follows(recorded: Lock) -> None:
    fence = recorded.acquire("x", lease=10)
    wait_until(lambda: not recorded.holders())
    for _ in range(2):
        assert recorded.release("x", fence=fence) == 0
    assert recorded.ends() == [("x", "lost")]
    assert recorded.counts() == {"acquired": 1, "expired": 0, "lost": 1}


def test_a_release_is_not_mistaken_for_that_of_another_hold(recorded: Lock) -> None:
    recorded.acquire("x")
    recorded.release("x")
    fence = recorded.acquire("x")
    recorded.force()
    assert recorded.release("x", fence=fence) == 0
    assert recorded.counts() == {"acquired": 2, "forced": 1}


@pytest.mark.parametrize("at_least", [0, LEASE])
def test_a_killed_holder_is_recorded_and_counted_once(recorded: Lock, at_least: int) -> None:
    fence = recorded.acquire("x")
    assert recorded.release("other", how="killed") == 0
    for _ in range(2):
        recorded.release("x", at_least, how="killed")
    for how, reply in (("killed", 1), ("released", 1 if at_least else 0)):
        assert recorded.release("x", fence=fence, how=how) == reply
    assert recorded.ends() == [("x", "killed")]
    assert recorded.counts() == {"acquired": 1, "killed": 1}


def test_without_a_history_a_repeated_release_replies_0(lock: Lock) -> None:
    fence = lock.acquire("x")
    assert lock.release("x", fence=fence) == 1
    assert lock.release("x", fence=fence) == 0


def test_the_end_of_a_cooldown_is_not_recorded(recorded: Lock) -> None:
    share = {"kind": "semaphore", "capacity": 2}
    recorded.acquire("x", lease=60, **share)
    recorded.acquire("y", **share)
    recorded.release("x", 50)
    recorded.pass_lease("x")
    recorded.acquire("z", **share)
    assert recorded.ends() == [("x", "released")]


def test_a_lock_is_kept_for_an_hour_after_its_lease_not_after_a_cooldown(recorded: Lock) -> None:
    share = {"kind": "semaphore", "capacity": 2}
    recorded.acquire("x", lease=1000, **share)
    assert 3_600_000 < recorded.client.pttl(A.lock) <= 3_601_000
    recorded.acquire("y", **share)
    recorded.release("y", 1000)
    assert recorded.client.pttl(A.lock) > 3_600_000, "for the lease of x"
    recorded.force()
    recorded.acquire("x")
    recorded.release("x", 1000)
    assert 0 < recorded.client.pttl(A.lock) <= 1000


@pytest.mark.parametrize("by", ["release", "renew"])
def test_an_expired_lease_is_recorded_by_calls_for_other_locks(recorded: Lock, by: str) -> None:
    other = KEYS.of(OTHERS[0])
    recorded.acquire("x", lease=10)
    wait_until(lambda: int(recorded.client.hget(A.lock, "latest")) < time.time() * 1000)
    recorded.client.zadd(A.index, {"long expired": 1})
    if by == "release":
        recorded.release("nobody", name=other.name)
    else:
        wanted = (other.index, other.locks, other.lock, other.history)
        recorded.ask(RENEW, wanted, "renew", f"nobody {LEASE}")
    assert recorded.client.xlen(f"{A.history}broken") == 1
    assert not recorded.client.exists(A.lock)
    assert recorded.client.zrange(A.index, 0, -1) == [""]


def test_a_refusal_has_no_wait_if_the_clock_was_set_back(recorded: Lock) -> None:
    recorded.acquire("x")
    recorded.acquire("y", heartbeat=60_000)
    recorded.client.zadd(A.queue, {"y": time.time() * 1e6 + 3_600_000_000})
    recorded.acquire("y")
    _, [y], _ = recorded.history()
    assert y["waited"] == "0"


def test_the_history_of_one_name_is_found_among_others(recorded: Lock) -> None:
    recorded.acquire("first")
    recorded.release("first")
    for number in range(450):
        recorded.acquire(f"t{number}", name=OTHERS[0])
        recorded.release(f"t{number}", fence=1, name=OTHERS[0])
    recorded.acquire("last")
    recorded.release("last")
    assert len(recorded.history(limit=300)[0]) == 300
    found, before = [], "+"
    while before:
        before, entries, *_ = recorded.read_stream("ended", "a", 100, before=before)
        found += [pairs(entry)["token"] for entry in entries]
    assert found == ["last", "first"]


def test_the_history_is_read_back_to_an_age(recorded: Lock) -> None:
    recorded.acquire("x")
    recorded.release("x")
    [key] = recorded.client.keys(f"{A.history}ended")
    [(_, fields)] = recorded.client.xrange(key)
    recorded.client.delete(key)
    now = int(time.time() * 1000)
    added = {minutes: now - minutes * 60_000 for minutes in (50, 40, 30, 20, 10, 5)}
    for minutes, ms in added.items():
        at = {"at": added[40] if minutes == 5 else ms}  # the last was added later
        recorded.client.xadd(key, fields | at, id=f"{ms}-0")
    cursor, entries, length, oldest = recorded.read_stream("ended", age=35 * 60_000)
    assert [int(pairs(entry)["at"]) for entry in entries] == [added[10], added[20], added[30]]
    assert (cursor, length, oldest) == ("", 6, str(added[50]))


def test_each_stream_has_the_time_of_its_oldest_event(recorded: Lock) -> None:
    recorded.acquire("x")
    recorded.acquire("refused")
    recorded.force()
    recorded.acquire("y")
    recorded.release("y")
    for stream in STREAMS:
        _, [entry], _, oldest = recorded.read_stream(stream)
        assert oldest == pairs(entry)["at"]


METADATA = {"a": [1, ',"renewed":', {"metadata": 2, "renewed": 3}], 'b,"metadata":': "c"}


def test_the_history_can_be_read_without_metadata(recorded: Lock) -> None:
    recorded.info = payload_text(
        METADATA, renewed=True, on_conflict="skip", task=(',"metadata":', '"')
    )
    recorded.acquire("x")
    recorded.acquire("refused")
    recorded.force()
    recorded.acquire("y")
    recorded.release("y")
    recorded.info = '{"is":"unread"}'
    recorded.acquire("z")
    recorded.release("z")
    ended, broken, refused = (recorded.read_stream(stream, metadata=0)[1] for stream in STREAMS)
    full = json.loads(payload_text(METADATA, renewed=True, on_conflict="skip", task=("", "")))
    expected = full | {"task_name": ',"metadata":', "task_id": '"'}
    del expected["metadata"]
    z, y = (json.loads(pairs(entry)["holder"].split(" ", 6)[6]) for entry in ended)
    assert (z, y) == ({"is": "unread"}, expected)
    [x] = (json.loads(pairs(entry)["holder"].split(" ", 6)[6]) for entry in broken)
    assert x == expected
    assert [json.loads(pairs(entry)["info"]) for entry in refused] == [expected]


@pytest.mark.parametrize(
    ("holder", "is_duplicate"),
    [
        (("work", "1"), True),
        (("work", "2"), False),  # the same message
        (("other", "1"), False),
        ((None, None), True),
        (None, True),
    ],
)
def test_the_refusal_of_a_task_that_skips_shows_whether_it_is_a_duplicate(
    recorded: Lock, holder: tuple[str | None, str | None] | None, is_duplicate: bool
) -> None:
    if holder:
        recorded.info = payload_text({}, renewed=True, task=holder)
    how = {"kind": "semaphore", "capacity": 1}
    recorded.acquire("x", **how)
    for on_conflict, task in (("skip", ("work", "2")), ("raise", ("work", "2")), ("skip", None)):
        recorded.info = payload_text({}, renewed=True, on_conflict=on_conflict, task=task)
        recorded.acquire("refused", **how)
    _, refused, _ = recorded.history()
    expected = None if is_duplicate else "0"
    assert [each.get("duplicate") for each in refused] == [None, None, expected]


def test_the_history_is_bounded_and_ordinary_releases_do_not_displace_forced_ones(
    recorded: Lock,
) -> None:
    recorded.max_events = 100
    recorded.acquire("x")
    recorded.force("x")
    for number in range(500):
        recorded.acquire(f"t{number}")
        recorded.acquire("refused")
        recorded.release(f"t{number}")
    for stream in ("ended", "refused"):
        assert 100 <= recorded.client.xlen(f"{A.history}{stream}") <= 200
    ended, _, _ = recorded.history(limit=1000)
    assert ("x", "forced") in [(each["token"], each["how"]) for each in ended]


def test_rates_are_removed_after_an_hour(recorded: Lock) -> None:
    rates = f"{A.history}rates"
    minute = int(time.time() // 60)
    old, young = f"{minute - 61} acquired", f"{minute - 50} acquired"
    recorded.client.hset(rates, mapping={old: 1, young: 1})
    for token in "xy":
        recorded.acquire(token)
        recorded.release(token)
    assert old not in recorded.client.hgetall(rates)
    assert young in recorded.client.hgetall(rates)
    assert recorded.counts() == {"acquired": 3}


def test_acquire_rows_and_force_skip_a_bad_holder_record(lock: Lock) -> None:
    lock.acquire("x", kind="semaphore", capacity=2)
    lock.client.hset(A.lock, "h:junk", "of another program")
    assert lock.holders() == ["x"]
    assert lock.acquire("junk", kind="semaphore", capacity=2) > 0
    lock.client.hset(A.lock, "h:junk", "again")
    assert sorted(lock.force()) == ["junk", "x"]
    assert lock.client.hset(A.lock, mapping={"h:junk": "and again", "kind": "mutex"})
    assert lock.acquire("y") > 0
    assert lock.holders() == ["y"]


OTHER_TYPES: dict[str, tuple[str | int, ...]] = {
    "string": ("SET", "of another program"),
    "hash": ("HSET", "of another", "program"),
    "list": ("RPUSH", "of another program"),
    "set": ("SADD", "of another program"),
    "zset": ("ZADD", 1, "of another program"),
    "stream": ("XADD", "*", "of another", "program"),
}
NEIGHBOUR = "neighbour"
SHARED_KEYS = {
    A.index: "zset",
    f"{A.history}ended": "stream",
    f"{A.history}broken": "stream",
    f"{A.history}refused": "stream",
    f"{A.history}rates": "hash",
    f"{A.inboxes}{INBOX}": "list",
    f"{A.inboxes}{INBOX}:alive": "string",
    A.lock: "hash",
    A.queue: "zset",
    A.waiting: "hash",
}


@pytest.mark.parametrize("when", ["free", "held", "queued"])
@pytest.mark.parametrize("key", SHARED_KEYS)
def test_a_key_of_another_type_fails_no_script(recorded: Lock, key: str, when: str) -> None:
    def spoil(kind: str) -> None:
        command, *values = OTHER_TYPES[kind]
        recorded.client.delete(key)
        recorded.client.execute_command(command, key, *values)

    steps = [
        lambda: recorded.acquire("w"),
        lambda: recorded.acquire("w", heartbeat=1750),
        lambda: recorded.acquire("v", kind="semaphore", capacity=2),
        lambda: recorded.heartbeat("w", "x"),
        lambda: recorded.renew("x", LEASE, "renew"),
        lambda: recorded.fence("x", 2**51),
        lambda: recorded.release("x"),
        lambda: recorded.release("x", 500, fence=5),
        lambda: recorded.release("w", fence=5),
        lambda: recorded.force("x"),
        lambda: recorded.force(),
        lambda: recorded.names(),
        lambda: recorded.names(order="sorted"),
        lambda: recorded.rows("a"),
        lambda: recorded.ask(QUEUE, (A.queue, A.waiting, A.inboxes, A.history), 10),
        lambda: recorded.history(),
    ]
    kinds = sorted(OTHER_TYPES.keys() - {SHARED_KEYS[key]})
    for step, kind in zip(steps, itertools.cycle(kinds), strict=False):
        recorded.client.delete("none", *recorded.client.keys("{scripts}:*"))
        if when != "free":
            recorded.acquire("x")
        if when == "queued":
            recorded.acquire("w", heartbeat=1750)
        spoil(kind)

        step()

        recorded.force()  # which can grant it to a waiter
        while recorded.force():
            pass
        for _ in range(2):
            fence = recorded.acquire("next", name=NEIGHBOUR)
            assert fence > 0
            assert recorded.release("next", fence=fence, name=NEIGHBOUR) == 1
        assert recorded.acquire("mine") > 0
        assert recorded.acquire("refused") == 0
        assert recorded.names()[2] == ["a"]
        assert recorded.release("mine") == 1
        recorded.history("a")
        assert recorded.counts()["acquired"]


def test_an_expired_key_of_another_type_does_not_block_a_renewal(recorded: Lock) -> None:
    recorded.acquire("x")
    recorded.client.set(f"{A.lock} b", "of another program")
    recorded.client.zadd(A.index, {"a b": 1})
    assert recorded.renew("x", LEASE, "renew") > 0
    assert recorded.client.zscore(A.index, "a b") is None
    assert recorded.client.exists(f"{A.lock} b")


def test_a_loss_is_recorded_whatever_the_history_holds(recorded: Lock) -> None:
    fence = recorded.acquire("x")
    recorded.force()
    fields = {f"field {number}": number for number in range(5000)}
    recorded.client.delete(f"{A.history}broken")
    for stream in ("ended", "broken"):
        recorded.client.xadd(f"{A.history}{stream}", fields)
    assert recorded.release("x", fence=fence) == 0
    ended, _, _ = recorded.history()
    assert [each["how"] for each in ended if each.get("token") == "x"] == ["lost"]


@pytest.mark.parametrize(
    ("missing", "do"),
    [("hvals", lambda half: half.rows("a")), ("zscore", lambda half: half.acquire("z"))],
)
def test_scripts_raise_if_the_user_has_too_few_rights(
    lock: Lock, missing: str, do: Callable[[Lock], object]
) -> None:
    lock.acquire("x")
    lock.acquire("y", heartbeat=5000)
    rules = {"keys": "*", "commands": ["+@all", f"-{missing}"]}
    lock.client.acl_setuser("half", enabled=True, nopass=True, **rules)
    options = lock.client.connection_pool.connection_kwargs
    half = redis.Redis(host=options["host"], port=options["port"], username="half")
    with half, pytest.raises(ResponseError, match=rf"{missing}|permission|can't run"):
        do(Lock(half))
    lock.client.acl_deluser("half")


# The last runs of a schedule


RUNS = KEYS.last_runs("a")


def last_runs(lock: Lock, fence: int, with_runs: str, *changes: str) -> Any:
    return lock.client.eval(LAST_RUNS.source, 1, RUNS, fence, with_runs, *changes)


def test_last_runs_are_recorded_removed_and_returned(lock: Lock) -> None:
    assert last_runs(lock, 5, "1") == '["fence","5"]'
    assert last_runs(lock, 5, "0", "daily", "one", "hourly", "two") == 1
    assert last_runs(lock, 5, "0", "daily", "") == 1
    assert pairs(json.loads(last_runs(lock, 6, "1"))) == {"fence": "6", "run:hourly": "two"}
    lock.client.delete(RUNS)


def test_a_schedule_can_have_many_entries(lock: Lock) -> None:
    changes = [text for number in range(10_000) for text in (f"entry-{number}", "run")]
    assert last_runs(lock, 5, "0", *changes) == 1
    assert len(pairs(json.loads(last_runs(lock, 6, "1")))) == 10_001
    lock.client.delete(RUNS)


def test_a_leader_with_an_older_fencing_token_changes_no_last_run(lock: Lock) -> None:
    last_runs(lock, 6, "0", "daily", "one")
    before = lock.client.hgetall(RUNS)
    assert last_runs(lock, 5, "0", "daily", "two") == 0
    assert last_runs(lock, 5, "1") == 0
    assert lock.client.hgetall(RUNS) == before
    lock.client.delete(RUNS)


def test_a_fencing_token_that_is_no_number_blocks_no_leader(lock: Lock) -> None:
    lock.client.hset(RUNS, "fence", "nonsense")
    assert last_runs(lock, 5, "0", "daily", "one") == 1
    assert lock.client.hget(RUNS, "fence") == "5"
    lock.client.delete(RUNS)
