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
B = KEYS.of("b")
LEASE = 30_000
HOUR = 3_600_000
INBOX = "aninbox"

TWO: dict[str, Any] = {"kind": "semaphore", "capacity": 2}
THREE: dict[str, Any] = {"kind": "semaphore", "capacity": 3}

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
        """Return the tokens that are not in the queue."""
        keys = A.index, A.inboxes, A.locks, A.lock, A.queue, A.waiting, A.history
        missing: str = self.ask(HEARTBEAT, keys, INBOX, epoch, LEASE, " ".join(tokens))
        return missing.split()

    def renew(self, *keys: str, ms: int = LEASE, mode: str = "renew") -> list[int]:
        """Renew the holds of the token x. Return what is left of each lease."""
        wanted = " ".join([f"x {ms}"] * len(keys))
        reply: str = self.ask(RENEW, (A.index, A.locks, *keys, A.history), mode, wanted)
        return [int(left) for left in reply.split()]

    def fence(self, token: str, fence: int) -> Any:
        return self.ask(FENCE, (A.index, A.lock, A.history), "a", token, fence)

    def force(self, token: str = "") -> Any:
        return self.ask(FORCE, A.all, "a", f"h:{token}" if token else "", "", "")

    def row(self) -> LockInfo | None:
        keys = lock_rows([A]).keys
        return _lock_infos([A], *json.loads(self.ask(ROWS, keys))).get("a")

    def names(
        self, limit: int = 10, cursor: str = "0", order: str = "scan"
    ) -> tuple[str, int, list[str]]:
        """Return the next cursor, how many locks are held, and the next names."""
        cursor, total, held = json.loads(self.ask(NAMES, KEYS.all, order, limit, cursor))
        return cursor, total, [name for name, _ in held]

    def queue(self, limit: int = 10) -> list[str]:
        reply = self.ask(QUEUE, (A.queue, A.waiting, A.inboxes, A.history), limit)
        members = self.client.zrange(A.queue, 0, -1, withscores=True)
        tokens = {came: token for token, came in members}
        return [tokens[float(came)] for came, *_ in json.loads(reply)[1]]

    def read_stream(
        self,
        stream: str,
        name: str = "",
        count: int = 1000,
        *,
        before: str = "+",
        age: int | str = "",
        metadata: int = 1,
    ) -> Any:
        args = (stream, name, count, before, age, metadata)
        return json.loads(self.ask(HISTORY, KEYS.all, *args))

    def events(self, *streams: str, **options: Any) -> list[Fields]:
        """Return the events of these streams, of each the newest first."""
        return [
            pairs(entry)
            for stream in streams or ("ended", "broken")
            for entry in self.read_stream(stream, **options)[1]
        ]

    def ends_of(self, token: str) -> list[str]:
        return [each["how"] for each in self.events() if each.get("token") == token]

    def counts(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for field, times in pairs(self.read_stream("rates")[1]).items():
            counted[field.split()[1]] += int(times)
        return counted

    def holders(self) -> list[str]:
        info = self.row()
        return sorted(each.token for each in info.holders) if info else []

    def waiters(self) -> list[str]:
        return self.client.zrange(A.queue, 0, -1)

    def fence_of(self, token: str) -> int:
        return int(self.client.hget(A.lock, f"h:{token}").split()[2])

    def pass_lease(self, token: str) -> None:
        wait_until(lambda: token not in self.holders())

    def set_back(self, *tokens: str, ms: int = HOUR) -> None:
        """Change what the server stores as if its clock had been set back."""

        def later(time: str) -> str:
            return str(int(time) + ms)

        for token in tokens:
            record = self.client.hget(A.lock, f"h:{token}")
            weight, expires, fence, acquired, rest = record.split(" ", 4)
            record = " ".join((weight, later(expires), fence, later(acquired), rest))
            self.client.hset(A.lock, f"h:{token}", record)
        for field in ("soonest", "latest", "released"):
            if before := self.client.hget(A.lock, field):
                self.client.hset(A.lock, field, later(before))
        self.client.pexpire(A.lock, self.client.pttl(A.lock) + ms)
        self.client.zadd(A.index, {"a": later(self.client.hget(A.lock, "latest"))})


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


# Holders and waiters


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


def test_a_takeover_needs_the_same_weight_and_a_running_lease(lock: Lock) -> None:
    lock.acquire("first", weight=2, **THREE)
    assert lock.acquire("x", weight=2, predecessor="first", **THREE) < 0
    lock.acquire("other", **THREE)
    lock.acquire("y", weight=2, heartbeat=5000, **THREE)
    assert lock.acquire("z", weight=2, heartbeat=5000, **THREE) == 0
    for _ in range(2):  # a repeated call has the same reply
        fence = lock.acquire("z", weight=2, predecessor="x", **THREE)
        assert fence == -lock.fence_of("z")
    assert (lock.holders(), lock.waiters()) == (["other", "z"], ["y"])
    assert lock.acquire("w", weight=1, predecessor="z", **THREE) == 0
    assert [lock.release("z", LEASE) for _ in range(2)] == [1, 1], "a repeated call is harmless"
    assert lock.acquire("z", weight=2, **THREE) == 0
    assert lock.acquire("w", weight=2, predecessor="z", **THREE) == 0
    assert lock.holders() == ["other", "z"]
    lock.release("other")
    assert lock.waiters() == ["y"], "it does not fit in yet"


def test_a_heartbeat_hands_over_an_expired_lock_and_reports_missing_waiters(lock: Lock) -> None:
    lock.acquire("x", lease=50)
    lock.acquire("y", heartbeat=5000)
    assert lock.heartbeat("y", "gone") == ["gone"]
    wait_until(lambda: not lock.client.exists(A.lock))
    assert lock.heartbeat("y", epoch=3) == []
    assert lock.client.lrange(A.inboxes + INBOX, 0, -1) == [f"1 {lock.fence_of('y')} 3"]
    assert lock.heartbeat("y", epoch=4) == ["y"], "it holds the lock"


def test_waiters_without_a_valid_record_are_skipped(lock: Lock) -> None:
    lock.acquire("x")
    for token in ("missing", "invalid", "y", "z"):
        lock.acquire(token, heartbeat=LEASE)
    lock.client.hdel(A.waiting, "missing")
    lock.client.hset(A.waiting, "invalid", "of another program")
    an_hour_ago = time.time_ns() / 1000 - HOUR * 1000
    lock.client.zadd(A.queue, {"missing": an_hour_ago, "invalid": an_hour_ago})
    assert (lock.queue(), lock.queue(limit=1)) == (["y", "z"], ["y"])
    assert lock.row().waiters == 2
    assert 0 <= lock.row().longest_wait < 1800
    lock.client.zadd(A.queue, {"y": an_hour_ago})
    assert 3599 <= lock.row().longest_wait < 5400
    for wrong in ("-inf", "+inf", "-1"):
        lock.client.zadd(A.queue, {"y": wrong, "z": wrong})
        assert (lock.row().waiters, lock.row().longest_wait) == (2, 0.0)
    lock.client.zadd(A.queue, {"y": an_hour_ago, "z": an_hour_ago + 1})
    lock.renew(A.lock, ms=10, mode="set")
    lock.pass_lease("x")
    assert lock.acquire("w", **THREE) == "mutex", "the kind of the first waiter"
    lock.heartbeat()
    assert (lock.holders(), lock.waiters()) == (["y"], ["z"])


@pytest.mark.parametrize("by", ["acquire", "acquire with its token", "heartbeat"])
def test_a_cooldown_begins_again_if_the_clock_was_set_back(lock: Lock, by: str) -> None:
    lock.acquire("x")
    assert lock.release("x", 500) == 1
    lock.set_back("x")
    if by == "heartbeat":
        assert lock.acquire("y", heartbeat=60_000) == 0
        lock.set_back("x")
        lock.heartbeat("y")
    else:
        assert lock.acquire("y" if by == "acquire" else "x") == 0
    assert 0 < lock.row().ttl <= 0.5
    lock.pass_lease("x")
    assert lock.acquire("z" if by != "heartbeat" else "y", heartbeat=60_000) > 0


def test_a_cooldown_goes_on_if_the_clock_was_set_back_by_less_than_the_hold(lock: Lock) -> None:
    """What is left of it is still at most `at_least_for`."""
    lock.acquire("x")
    lock.set_back("x", ms=-5000)
    lock.renew(A.lock)
    assert lock.release("x", 10_000) == 1
    lock.set_back(ms=1000)
    before = lock.client.hgetall(A.lock)
    assert lock.acquire("y") == 0
    assert lock.client.hgetall(A.lock) == before


def test_a_larger_fencing_token_counts_for_all_later_holders(lock: Lock) -> None:
    fence = lock.acquire("x")
    assert lock.fence("y", 2 * fence) == 0
    assert lock.fence("x", 5) == 1
    assert lock.client.zscore(A.index, "") == fence
    raised = fence + 10**12
    assert [lock.fence("x", raised) for _ in range(2)] == [1, 1]
    assert lock.fence_of("x") == raised
    lock.release("x")
    assert lock.acquire("y") > raised


def test_force_finds_holders_by_a_chosen_or_a_stored_token(lock: Lock) -> None:
    for token in ["x:1", "x:2", "x", "xy:1", "y:x:1"]:
        lock.acquire(token, kind="semaphore", capacity=5)
    lock.acquire("queued", kind="semaphore", capacity=5, heartbeat=5000)
    assert lock.force("queued") == [], "it does not hold the lock"
    assert lock.force("x:2") == ["x:2"]
    assert sorted(lock.force("x")) == ["x", "x:1"]
    assert lock.force("x") == []
    assert lock.force("y") == ["y:x:1"]
    assert lock.force("xy:1") == ["xy:1"]


# Listings


def hold_with_score(lock: Lock, ends: dict[str, float]) -> None:
    """Acquire each of these names, and set its score in the index."""
    for name, end in ends.items():
        lock.acquire("x", name=name)
        lock.client.zadd(A.index, {name: end})


@pytest.mark.parametrize("limit", [1, 7, 60, 100])
def test_sorted_names_have_the_locks_that_expire_first(lock: Lock, limit: int) -> None:
    shuffled = [number * 23 % 60 for number in range(60)]
    hold_with_score(lock, {f"{number:02}": 9e12 + number // 3 for number in shuffled})
    found: list[str] = []
    cursor = "0"
    while not found or cursor != "0":
        cursor, total, names = lock.names(limit, cursor, "sorted")
        assert total == 60
        assert len(names) <= limit
        found += names
    assert found == [f"{number:02}" for number in range(60)]


# The history


def test_a_repeated_release_gets_the_reply_of_its_own_hold(recorded: Lock) -> None:
    first = recorded.acquire("x")
    for _ in range(2):
        assert recorded.release("x", fence=first) == 1
        recorded.acquire("y")
        recorded.release("y")
    second = recorded.acquire("x")
    recorded.force()
    assert recorded.release("x", fence=second) == 0
    assert recorded.ends_of("x") == ["released", "forced"]
    recorded.max_events = 0
    third = recorded.acquire("x")
    assert [recorded.release("x", fence=third) for _ in range(2)] == [1, 0], "without a history"


def test_a_loss_replaces_the_expiry_that_it_follows(recorded: Lock) -> None:
    fence = recorded.acquire("x", lease=10)
    recorded.pass_lease("x")
    for _ in range(2):
        assert recorded.release("x", fence=fence) == 0
    assert recorded.ends_of("x") == ["lost"]
    assert recorded.counts() == {"acquired": 1, "expired": 0, "lost": 1}


@pytest.mark.parametrize("at_least", [0, LEASE])
def test_a_killed_holder_is_recorded_and_counted_once(recorded: Lock, at_least: int) -> None:
    fence = recorded.acquire("x")
    assert recorded.release("other", how="killed") == 0
    for _ in range(2):
        recorded.release("x", at_least, how="killed")
    for how, reply in (("killed", 1), ("released", 1 if at_least else 0)):
        assert recorded.release("x", fence=fence, how=how) == reply
    assert recorded.ends_of("x") == ["killed"]
    assert recorded.counts() == {"acquired": 1, "killed": 1}


def test_a_lock_is_kept_for_an_hour_after_its_lease_not_after_a_cooldown(recorded: Lock) -> None:
    recorded.acquire("x", lease=1000, **TWO)
    assert HOUR < recorded.client.pttl(A.lock) <= HOUR + 1000
    recorded.acquire("y", **TWO)
    recorded.release("y", 1000)
    assert recorded.client.pttl(A.lock) > HOUR, "for the lease of x"
    recorded.force()
    recorded.acquire("x")
    recorded.release("x", 1000)
    assert 0 < recorded.client.pttl(A.lock) <= 1000


@pytest.mark.parametrize("by", ["release", "renew"])
def test_an_expired_lease_is_recorded_by_calls_for_other_locks(recorded: Lock, by: str) -> None:
    recorded.acquire("x", lease=10)
    wait_until(lambda: int(recorded.client.hget(A.lock, "latest")) < time.time() * 1000)
    recorded.client.zadd(A.index, {"long expired": 1})
    if by == "release":
        recorded.release("nobody", name="b")
    else:
        assert recorded.renew(B.lock) == [0]
    assert recorded.client.xlen(f"{A.history}broken") == 1
    assert not recorded.client.exists(A.lock)
    assert recorded.client.zrange(A.index, 0, -1) == [""]


def test_the_history_of_one_name_is_found_among_others_and_is_bounded(recorded: Lock) -> None:
    recorded.max_events = 100
    recorded.acquire("forced")
    recorded.force()
    for number in range(320):
        recorded.acquire(f"t{number}", name="b")
        recorded.acquire("refused", name="b")
        recorded.release(f"t{number}", name="b")
        if number in (250, 310):
            recorded.acquire(f"of a {number}")
            recorded.release(f"of a {number}")
    for stream in ("ended", "refused"):
        assert 100 <= recorded.client.xlen(f"{A.history}{stream}") <= 200
    assert recorded.ends_of("forced") == ["forced"], "other events do not displace it"
    found: list[str] = []
    before = "+"
    while before:
        before, entries, *_ = recorded.read_stream("ended", "a", 30, before=before)
        found += [pairs(entry)["token"] for entry in entries]
    assert found == ["of a 310", "of a 250"]


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
    for stream in STREAMS:
        _, [entry], _, oldest = recorded.read_stream(stream)
        assert oldest == pairs(entry)["at"]
    expected = json.loads(payload_text(METADATA, renewed=True, on_conflict="skip", task=("", "")))
    expected |= {"task_name": ',"metadata":', "task_id": '"'}
    del expected["metadata"]
    recorded.info = '{"is":"unread"}'
    recorded.acquire("z")
    recorded.release("z")
    infos = [json.loads(each["holder"].split(" ", 6)[6]) for each in recorded.events(metadata=0)]
    assert infos == [{"is": "unread"}, expected, expected]
    [refused] = recorded.events("refused", metadata=0)
    assert json.loads(refused["info"]) == expected


@pytest.mark.parametrize(
    ("holder", "is_duplicate"),
    # Another message, the same message, another task, and no task.
    {("work", "1"): True, ("work", "2"): False, ("other", "1"): False, (None, None): True}.items(),
)
def test_the_refusal_of_a_task_that_skips_shows_whether_it_is_a_duplicate(
    recorded: Lock, holder: tuple[str | None, str | None], is_duplicate: bool
) -> None:
    recorded.info = payload_text({}, renewed=True, task=holder)
    recorded.acquire("x")
    for on_conflict, task in (("skip", ("work", "2")), ("raise", ("work", "2")), ("skip", None)):
        recorded.info = payload_text({}, renewed=True, on_conflict=on_conflict, task=task)
        recorded.acquire("refused")
    marks = [each.get("duplicate") for each in recorded.events("refused")]
    assert marks == [None, None, None if is_duplicate else "0"]


def test_rates_are_removed_after_an_hour(recorded: Lock) -> None:
    rates = f"{A.history}rates"
    minute = int(time.time() // 60)
    old, young = f"{minute - 61} acquired", f"{minute - 50} acquired"
    recorded.client.hset(rates, mapping={old: 1, young: 1})
    for token in "xy":
        recorded.acquire(token)
        recorded.release(token)
    assert old not in recorded.client.hgetall(rates)
    assert recorded.counts() == {"acquired": 3}


# Data of other programs, and missing rights


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
    lock.acquire("x")
    lock.acquire("x", name="b")
    lock.client.hset(A.lock, mapping=fields)
    _, left, missing = lock.renew(A.lock, B.lock, KEYS.of("free").lock)
    assert (left > 0, missing) == (True, 0)
    assert isinstance(lock.acquire("y"), int), "and the bad lock can be asked for"


def test_a_bad_record_of_a_holder_is_skipped(lock: Lock) -> None:
    lock.acquire("x", **TWO)
    lock.client.hset(A.lock, "h:junk", "of another program")
    assert lock.holders() == ["x"]
    assert lock.acquire("junk", **TWO) > 0
    lock.client.hset(A.lock, "h:junk", "again")
    assert sorted(lock.force()) == ["junk", "x"]
    lock.client.hset(A.lock, mapping={"h:junk": "and again", "kind": "mutex"})
    assert lock.acquire("y") > 0
    assert lock.holders() == ["y"]
    weight, expires, fence, rest = lock.client.hget(A.lock, "h:y").split(" ", 3)
    too_long = " ".join((weight, expires, "0" * 100 + fence, rest))
    lock.client.hset(A.lock, "h:y", too_long)
    assert lock.release("y") == 0
    assert lock.client.hget(A.lock, "h:y") == too_long


OTHER_TYPES: dict[str, tuple[str | int, ...]] = {
    "string": ("SET", "of another program"),
    "hash": ("HSET", "of another", "program"),
    "list": ("RPUSH", "of another program"),
    "set": ("SADD", "of another program"),
    "zset": ("ZADD", 1, "of another program"),
    "stream": ("XADD", "*", "of another", "program"),
}
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
STEPS: list[Callable[[Lock], object]] = [
    lambda lock: lock.acquire("w"),
    lambda lock: lock.acquire("w", heartbeat=1750),
    lambda lock: lock.acquire("v", **TWO),
    lambda lock: lock.heartbeat("w", "x"),
    lambda lock: lock.renew(A.lock),
    lambda lock: lock.fence("x", 2**51),
    lambda lock: lock.release("x"),
    lambda lock: lock.release("x", 500, fence=5),
    lambda lock: lock.release("w", fence=5),
    lambda lock: lock.force("x"),
    lambda lock: lock.force(),
    lambda lock: lock.names(),
    lambda lock: lock.names(order="sorted"),
    lambda lock: lock.row(),
    lambda lock: lock.ask(QUEUE, (A.queue, A.waiting, A.inboxes, A.history), 10),
    lambda lock: lock.events(*STREAMS),
]


@pytest.mark.parametrize("when", ["free", "held", "queued"])
@pytest.mark.parametrize("key", SHARED_KEYS)
def test_a_key_of_another_type_fails_no_script(recorded: Lock, key: str, when: str) -> None:
    kinds = sorted(OTHER_TYPES.keys() - {SHARED_KEYS[key]})
    for step, kind in zip(STEPS, itertools.cycle(kinds), strict=False):
        recorded.client.delete("none", *recorded.client.keys("{scripts}:*"))
        if when != "free":
            recorded.acquire("x")
        if when == "queued":
            recorded.acquire("w", heartbeat=1750)
        command, *values = OTHER_TYPES[kind]
        recorded.client.delete(key)
        recorded.client.execute_command(command, key, *values)

        step(recorded)

        recorded.force()  # which can grant it to a waiter
        while recorded.force():
            pass
        for _ in range(2):
            fence = recorded.acquire("next", name="neighbour")
            assert fence > 0
            assert recorded.release("next", fence=fence, name="neighbour") == 1
        assert recorded.acquire("mine") > 0
        assert recorded.acquire("refused") == 0
        assert recorded.names()[2] == ["a"]
        assert recorded.release("mine") == 1
        recorded.events(name="a")
        assert recorded.counts()["acquired"]


@pytest.mark.parametrize(
    ("missing", "do"),
    [("hvals", lambda half: half.row()), ("zscore", lambda half: half.acquire("z"))],
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


def last_runs(lock: Lock, fence: int, with_runs: str, *changes: str) -> Any:
    runs = KEYS.last_runs("a")
    return lock.client.eval(LAST_RUNS.source, 1, runs, fence, with_runs, *changes)


def test_last_runs_are_recorded_removed_and_returned_unless_a_newer_leader_began(
    lock: Lock,
) -> None:
    lock.client.hset(KEYS.last_runs("a"), "fence", "nonsense")
    assert last_runs(lock, 5, "1") == '["fence","5"]'
    assert last_runs(lock, 5, "0", "daily", "one", "hourly", "two") == 1
    assert last_runs(lock, 5, "0", "daily", "") == 1
    runs = last_runs(lock, 6, "1")
    assert pairs(json.loads(runs)) == {"fence": "6", "run:hourly": "two"}
    assert last_runs(lock, 5, "0", "hourly", "three") == 0
    assert last_runs(lock, 5, "1") == 0
    assert last_runs(lock, 6, "1") == runs
    many = [text for number in range(10_000) for text in (f"entry-{number}", "run")]
    assert last_runs(lock, 6, "0", *many) == 1
    assert len(pairs(json.loads(last_runs(lock, 6, "1")))) == 10_002
