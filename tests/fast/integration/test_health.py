"""`ping()` and `health()` with healthy and faulty servers."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import TimeoutError

from django_redislock import locks
from django_redislock.health import CHECKS
from tests.lock_tools import hanging, within
from tests.servers import Node
from tests.tools import leftovers, wait_until


def as_user(alias_on, own_server, own_redis, *rules):
    own_redis.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+@all", *rules)
    return alias_on(f"redis://app:s3cret@127.0.0.1:{own_server.port}/0")


def statuses(health):
    return {each.id: each.status for each in health.findings}


# ping


def test_pings_do_not_conflict_and_leave_nothing(redis_server):
    redis_server.flushdb()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: locks.ping(timeout=10), range(40)))
    assert asyncio.run(locks.aping()) > 0
    locks.health()
    assert leftovers(redis_server) == []
    assert locks.history() == ()


async def test_a_ping_without_a_reply_leaves_no_lock(own_locks, own_server, own_redis):
    with pytest.raises(ValueError, match="timeout"):
        await own_locks.aping(timeout=0)
    await own_locks.aping()
    own_locks.ping()
    with hanging(own_server):
        with within(4), pytest.raises(TimeoutError):
            own_locks.ping(timeout=0.3)
        task = asyncio.create_task(own_locks.aping(timeout=1))
        await asyncio.sleep(0.1)  # until the task waits for its reply
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: leftovers(own_redis) == [])


# health


def test_a_healthy_server(alias_on, own_server):
    own = alias_on(own_server.url, decode_responses=True)
    sync = own.health()
    assert sync.alias == "own"
    assert sync.status == "warning"
    assert [each.id for each in sync.findings] == list(CHECKS)
    wrong = {id for id, status in statuses(sync).items() if status != "ok"}
    assert wrong - {"round_trip", "client"} == {"persistence"}  # a busy machine may be slow
    for found in sync.findings:
        assert bool(found.remedy) == (found.status != "ok"), found
    other = asyncio.run(own.ahealth())
    assert {**statuses(sync), "round_trip": ""} == {**statuses(other), "round_trip": ""}
    for id in ("eviction", "replication", "client", "connection"):
        assert sync.get(id) == other.get(id)


@pytest.mark.hurried
@pytest.mark.parametrize("is_there", [False, True], ids=["no server", "hangs"])
def test_a_server_that_does_not_respond_is_a_finding(alias_on, own_server, is_there):
    own = alias_on(own_server.url if is_there else "redis://127.0.0.1:1/0", socket_timeout=5)
    with hanging(own_server), within(20):
        all_found = own.health(timeout=0.5), asyncio.run(own.ahealth(timeout=0.5))
    for found in all_found:
        assert found.get("connection").status == "failed"
        others = statuses(found)
        del others["connection"]
        assert others.pop("client") == "ok"
        assert set(others.values()) == {"unknown"}


def test_a_wrong_password_is_a_finding(alias_on, own_server, own_redis):
    own_redis.config_set("requirepass", "s3cret")
    found = alias_on(f"redis://:guess@127.0.0.1:{own_server.port}/0").health().get("connection")
    assert found.status == "failed"
    assert "refuses the user name or the password of CACHES['own']" in found.summary
    assert "guess" not in str(found)


@pytest.mark.parametrize(
    ("setting", "value", "id", "status", "summary"),
    [
        ("maxmemory-policy", "allkeys-lru", "eviction", "warning", "allkeys-lru"),
        ("appendonly", "no", "persistence", "warning", "no append-only file"),
        ("min-replicas-to-write", 1, "replication", "failed", "0 replic"),
    ],
)
def test_a_setting_of_the_server_is_a_finding(
    own_locks, own_redis, setting, value, id, status, summary
):
    own_redis.config_set(setting, value)
    health = own_locks.health()
    found = health.get(id)
    assert found.status == status
    assert summary in found.summary
    assert (health.get("locking").status == "ok") is (status != "failed")


def test_memory(own_locks, own_redis):
    own_redis.config_set("maxmemory", "100mb")
    assert own_locks.health().get("memory").status == "ok"
    used = own_redis.info("memory")["used_memory"]
    own_redis.config_set("maxmemory", round(used / 0.95))
    assert own_locks.health().get("memory").status == "warning"
    own_redis.config_set("maxmemory", 0)
    for number in range(100):  # the buffer of a large command would be freed soon
        own_redis.set(f"stuffing:{number}", "x" * 20_000)
    own_redis.config_set("maxmemory", own_redis.info("memory")["used_memory"] - 1_000_000)
    full = own_locks.health()
    assert full.get("memory").status == full.get("locking").status == "failed"


def test_a_primary_and_its_replica(alias_on, own_locks, own_server, own_redis):
    own_redis.config_set("repl-diskless-sync-delay", 0)
    with Node(replicaof=f"127.0.0.1 {own_server.port}") as replica:
        wait_until(
            lambda: own_redis.info("replication").get("slave0", {}).get("state") == "online"
        )
        found = alias_on(replica.url, alias="replica").health()
        assert found.get("replication").status == "failed"
        assert found.get("replication").facts == {"role": "slave"}
        assert "ReadOnlyError" in found.get("locking").summary

        found = own_locks.health().get("replication")
        assert (found.status, found.facts["replicas"]) == ("warning", 1)
        assert "failover can lose" in found.summary


@pytest.mark.parametrize(
    ("ahead", "status", "side"),
    [(0.4, "ok", "ahead"), (-60, "warning", "behind")],
)
def test_clock(own_locks, monkeypatch, ahead, status, side):
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() - ahead)
    found = own_locks.health().get("clock")
    assert found.status == status
    assert found.facts["offset_ms"] == pytest.approx(ahead * 1000, abs=300)
    assert side in found.summary


def test_client(alias_on, own_server):
    def found(**options):
        return alias_on(own_server.url, **options).health().get("client")

    assert found(socket_timeout=None).status == "warning"
    right = found(socket_timeout=3, max_connections=7)
    facts = {"redis_py": redis.__version__, "socket_timeout": 3, "max_connections": 7}
    assert (right.status, right.facts) == ("ok", facts)
    wrong = alias_on(own_server.url, nonsense=1).health()
    assert wrong.get("client").status == wrong.get("connection").status == "failed"


# Users with few rights


def test_facts_that_the_user_may_not_read_are_unknown(alias_on, own_server, own_redis):
    found = as_user(alias_on, own_server, own_redis, "-info").health()
    unknown = {id for id, status in statuses(found).items() if status == "unknown"}
    assert unknown == {"eviction", "memory", "persistence", "replication"}


@pytest.mark.parametrize(
    ("rules", "needs", "step"),
    [
        (["-eval"], "+eval", None),
        (["-@scripting", "-blpop", "-hset"], "+blpop +eval +evalsha +hset", "acquire"),
        (["resetkeys", "~cache:*", "-get"], "+get ~{own:redislock}:*", "acquire"),
    ],
)
def test_missing_rights_are_named(own_locks, alias_on, own_server, own_redis, rules, needs, step):
    own_locks.health()  # the server knows the scripts
    own = as_user(alias_on, own_server, own_redis, *rules)
    found = own.health()
    scripts, locking = found.get("scripts"), found.get("locking")
    assert (scripts.status, scripts.facts) == ("failed", {"needs": needs})
    assert (locking.status, locking.facts.get("step")) == ("failed" if step else "ok", step)
    own_redis.execute_command("ACL", "SETUSER", "app", "+@all", "~*")
    wait_until(lambda: own.count() == 0 and leftovers(own_redis) == [])
