"""embedded_redis() gives each test an empty server for its locks and caches."""

import asyncio

import redis
from django.core.cache import cache, caches
from django.test import override_settings

from django_redislock import locks
from django_redislock.testing import embedded_redis, held_elsewhere
from tests.lock_tools import renewed

NAME = "tests:kit"
CORE = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"
LOCMEM = "django.core.cache.backends.locmem.LocMemCache"


def at(location, **more):
    return {"BACKEND": CORE, "LOCATION": location, **more}


def place(alias: str) -> str:
    return caches.settings[alias]["LOCATION"]


def test_locks_and_caches_use_the_embedded_server(redis_server) -> None:
    before = {*redis_server.keys()}

    @embedded_redis()
    async def work() -> str:
        async with locks.lock(NAME):
            assert await locks.aget(NAME)
        return place("default")

    with embedded_redis() as server, redis.Redis.from_url(server.url) as there:
        cache.set("a", 1, timeout=60)
        with locks.lock(NAME):
            assert any(NAME in str(key) for key in there.scan_iter())
        assert cache.get("a") == caches["django_redis"].get("a") == 1
        assert locks.ping() > 0
        with held_elsewhere(NAME):
            assert not locks.lock(NAME).acquire(blocking_timeout=0.05)
        assert {event.outcome for event in locks.history()} == {"released", "refused"}
        assert {*redis_server.keys()} <= before  # keys of other tests may expire meanwhile
        assert asyncio.run(work()) == server.url
    assert cache.get("a") is None
    with locks.lock(NAME, timeout=5) as outside:
        with embedded_redis():
            assert locks.get(NAME) is None
        assert outside.owned()
    assert asyncio.run(work()) == server.url != place("default")


def test_the_server_is_the_same_each_time_and_empty_without_a_loss(caplog) -> None:
    lost = []
    with embedded_redis() as first, redis.Redis.from_url(first.url) as there:
        there.set("of the test's own", 1)
        lock = locks.lock(NAME, timeout=1.5, on_lost=lost.append)
        held_elsewhere(lock).__enter__()
        locks.lock("tests:other", timeout=1.5, on_lost=lost.append).acquire()
    with embedded_redis() as second, redis.Redis.from_url(second.url) as there:
        assert second.pid == first.pid
        assert there.dbsize() == 0
        with locks.lock(NAME, timeout=1.5) as again:
            renewed(locks, NAME, times=3)  # until the others would have expired
            assert not again.lost
    assert lost == []
    assert "Lock lost: name='tests:" not in caplog.text


def test_each_database_and_each_server_of_the_settings_is_replaced() -> None:
    same = {
        "default": at("redis://one", KEY_PREFIX="same"),
        "number": at("redis://one:6379/0"),
        "user": at("redis://us3r:secret@one:6379/0"),
        "django_redis": {**at("redis://one:6379/0"), "BACKEND": DJANGO_REDIS},
    }
    near = same | {
        "locks": at("redis://:secret@one:6379/1"),
        "by_option": at("redis://one:6379", OPTIONS={"db": 2}),
    }
    settings = near | {"far": at(["redis://two:6379", "redis://three:6379"])}
    with override_settings(CACHES=settings, REDISLOCK_CACHE="locks"), embedded_redis() as server:
        assert place("locks") == server.url
        assert {place(alias) for alias in same} == {place("default")}
        assert len({place(alias) for alias in settings}) == 4
        servers = {place(alias).rpartition("/")[0] for alias in near}
        assert servers == {server.url.rpartition("/")[0]}
        assert server.address not in place("far")


def test_the_alias_of_locks_is_replaced_with_any_backend() -> None:
    other = {"BACKEND": LOCMEM}
    ours = other | {"KEY_PREFIX": "ours", "OPTIONS": {"MAX_ENTRIES": 9}}
    settings = {"default": ours, "other": other, "more": other}
    with override_settings(CACHES=settings), embedded_redis(also=["more"]):
        with locks.lock(NAME), locks.using("more").lock(NAME):
            assert caches["default"].key_prefix == "ours"
        assert caches.settings["other"] == {"BACKEND": LOCMEM}


def test_connection_options_are_dropped_and_value_options_are_kept() -> None:
    settings = {
        "default": {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": "rediss://mymaster/0",
            "TIMEOUT": 77,
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "SENTINELS": [("sentinel", 26379)],
                "PASSWORD": "secret",
                "SERIALIZER": "django_redis.serializers.json.JSONSerializer",
            },
        },
        "core": at("rediss://one", OPTIONS={"ssl_cert_reqs": "none", "password": "secret"}),
    }
    others = {"DJANGO_REDIS_CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory"}
    others |= {"REDISLOCK_CLIENT": "tests.fast.testing_kit.nowhere"}
    with override_settings(CACHES=settings, **others), embedded_redis():
        with locks.lock(NAME), locks.using("core").lock(NAME):
            cache.set("a", {1: 2})
        assert cache.get("a") == {"1": 2}
        assert cache.default_timeout == 77
