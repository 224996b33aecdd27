"""The fast paths of acquire and release do exactly what their slow paths do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_redislock.lua import ACQUIRE, FORCE, RELEASE, Script

from .stage import BEGINNING, CLOCK, KEYS, MOVE, PASS_TIME, staged

Call = tuple[str, tuple[Any, ...]]


def variant(script: Script, **replacements: str) -> Script:
    source = script.source
    for condition, replacement in replacements.items():
        text = CONDITIONS[condition]
        assert source.count(text) == 1, f"{script.name} has no fast path: {text}"
        source = source.replace(text, replacement)
    return staged(replace(script, source=source))


CONDITIONS = {
    "sampled": "is_free and now_us % 64 > 0",
    "queue_is_empty": "is_room and redis.call('EXISTS', queue) == 0",
    "uncontended": "at_least == '0' and redis.call('EXISTS', queue) == 0",
}
FAST = {
    "acquire": variant(ACQUIRE, sampled="is_free"),
    "release": staged(RELEASE),
    "force": staged(FORCE),
}
SLOW = {
    "acquire": variant(ACQUIRE, sampled="false", queue_is_empty="false"),
    "release": variant(RELEASE, uncontended="false"),
}

tokens = st.sampled_from("abc")
kinds = st.sampled_from(["mutex 1 1", "semaphore 2 1", "semaphore 2 2"])
leases, waits = st.sampled_from([50, 5000]), st.sampled_from([0, 0, 1750])
predecessors = st.sampled_from(["", "", "a"])

acquires = st.builds(
    lambda kind, lease, token, heartbeat, predecessor: (
        *(KEYS.name, token),
        f"{kind} {lease} {min(lease, 2000)} {heartbeat} inbox 1 1 {predecessor}",
        "{}",
    ),
    *(kinds, leases, tokens, waits, predecessors),
)
releases = st.tuples(
    *(st.just(KEYS.name), tokens, st.sampled_from([0, 0, 1000]), st.sampled_from([0, 5])),
    st.sampled_from(["released", "released", "killed"]),
)
calls = st.tuples(st.just("acquire"), acquires) | st.tuples(st.just("release"), releases)
forces = st.tuples(st.just("force"), st.just((KEYS.name, "", "", "")))
pauses = st.tuples(st.just("pass_time"), st.sampled_from([(60_000,), (3_000_000,)]))
forged = st.sampled_from(
    [
        ("HSET", KEYS.lock, "h:b", "of another program"),
        ("HSET", KEYS.lock, "h:a", "1 " + "9" * 30 + " 1 1 0 5000 {}"),
        ("HDEL", KEYS.lock, "kind"),
        ("ZADD", KEYS.index, 5, KEYS.name),
        ("ZADD", KEYS.index, 5e15, ""),
        ("ZADD", KEYS.index, 2**53, ""),
    ]
)
forgeries = st.tuples(st.just("forge"), forged)


@pytest.mark.parametrize("kept", [0, 1000])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(calls | calls | forces | pauses | forgeries, max_size=6), last=calls)
def test_a_fast_path_replies_and_writes_what_the_slow_path_does(
    redis_client: redis.Redis, kept: int, steps: list[Call], last: Call
) -> None:
    def run(scripts: dict[str, Script], call: Call) -> Any:
        what, args = call
        if what == "forge":
            return redis_client.execute_command(*args)
        if what == "pass_time":
            return redis_client.eval(PASS_TIME.source, 0, *args)
        reply, _ = redis_client.eval(scripts[what].source, 6, *KEYS.all, *args, kept)
        return reply

    outcomes = []
    for scripts in (FAST, SLOW):
        redis_client.flushdb()
        redis_client.set(CLOCK, BEGINNING)
        for step in steps:
            run(FAST, step)
        outcomes.append((run(scripts, last), contents(redis_client)))
    redis_client.flushdb()
    assert outcomes[0] == outcomes[1]


READERS: dict[bytes, Callable[[redis.Redis, bytes], Any]] = {
    b"string": lambda client, key: client.get(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: [fields for _, fields in client.xrange(key)],
}


def contents(client: redis.Redis) -> dict[bytes, tuple[int, Any]]:
    """Return what each key holds and when it expires. The ids of stream entries are left out, and
    so is the heartbeat of an inbox, which a caller that joins no queue does not send."""
    ends_at = f"{MOVE}\nreturn ends_at(KEYS[1])"
    return {
        key: (client.eval(ends_at, 1, key), READERS[client.type(key)](client, key))
        for key in client.scan_iter()
        if not key.endswith(b":alive")
    }
