"""Cache aliases as the servers of locks: prefixes, options, pools, and changed settings."""

import asyncio
import re

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import locks
from django_redislock.checks import check_server, check_settings
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import start, waiting
from tests.servers import Certificates, Node

DJANGO_VALKEY = "django_valkey.cache.ValkeyCache"


def prefixes(client):
    return {key.partition(":lock:")[0].strip("{}") for key in client.scan_iter("*:lock:*")}


def test_another_prefix_is_another_lock(redis_server):
    redis_server.flushdb()  # expired keys and keys of earlier tests can remain for a while
    lock = locks.lock("a")
    assert lock.acquire()
    with override_settings(REDISLOCK_PREFIX="other"):
        assert locks.get("a") is None
        with locks.lock("a", blocking=False):
            assert prefixes(redis_server) == {"testproject:redislock", "testproject:other"}
        lock.release()
    assert locks.get("a") is None


def test_a_change_of_the_default_lease_applies_at_once():
    with locks.lock("a") as lock, override_settings(REDISLOCK_TIMEOUT=7, REDISLOCK_HISTORY=0):
        assert lock.timeout == 30.0
        locks.assert_held("a")
        with locks.lock("a", reentrant=True, blocking=False):
            pass
        with locks.lock("b"):
            assert locks.get("b").timeout == 7.0
        assert locks.lock("a", timeout=5).timeout == 5.0
        locks.assert_held("a")


def test_a_change_of_the_alias_applies_at_once(alias_on, own_server, own_redis):
    alias_on(own_server.url)
    assert locks.alias == "default"
    with override_settings(REDISLOCK_CACHE="own"):
        assert locks.alias == "own"
        with locks.lock("a"):
            assert prefixes(own_redis) == {"own:redislock"}
    assert locks.get("a") is None


def test_an_error_names_an_unsupported_backend(settings):
    backend = "django.core.cache.backends.locmem.LocMemCache"
    settings.CACHES = {**settings.CACHES, "unfit": {"BACKEND": backend}}
    unfit = locks.using("unfit")
    with pytest.raises(ImproperlyConfigured, match="'nope'"):
        locks.using("nope").get("a")
    for use in (unfit.count, lambda: asyncio.run(unfit.lock("a").aacquire())):
        with pytest.raises(ImproperlyConfigured, match=f"'unfit'.*{backend}"):
            use()
    settings.REDISLOCK_CACHE = "unfit"
    message = the_check()
    assert "'unfit'" in message.msg
    assert "REDISLOCK_CACHE" in message.hint


def the_check():
    """Return the message of the system checks about an alias that cannot be used."""
    assert check_server(None) == []
    [message] = check_settings(None)
    assert message.id == "redislock.E002"
    return message


MISTAKEN = {
    "address": (CORE, {"LOCATION": "redis://.example.com:6379/0"}, ""),
    "no address": (CORE, {"LOCATION": []}, ""),
    "option": (CORE, {"socket_timeoutt": 5}, "socket_timeoutt"),
    "value": (CORE, {"max_connections": "many"}, "max_connections"),
    "timeout": (CORE, {"socket_timeout": "5"}, "socket_timeout must be at least"),
    "database": (CORE, {"db": "x"}, "db must be a number, got 'x'"),
    "class": ("django.core.cache.backends.redis.NoCache", {}, "NoCache"),
    "django-redis's timeout": (DJANGO_REDIS, {"SOCKET_TIMEOUT": "5"}, "Socket timeout"),
    "django-redis's client": (DJANGO_REDIS, {"CLIENT_CLASS": "nowhere.Client"}, "nowhere"),
}


@pytest.mark.parametrize(("backend", "options", "text"), MISTAKEN.values(), ids=MISTAKEN)
def test_an_alias_with_invalid_options_is_named(settings, alias_on, backend, options, text):
    others = {**options}
    mistaken = alias_on(others.pop("LOCATION", "redis://mistaken"), backend=backend, **others)
    for use in (mistaken.lock("a").acquire, lambda: asyncio.run(mistaken.acount())):
        with pytest.raises(ImproperlyConfigured, match=f"'own': .*({text})"):
            use()
    settings.REDISLOCK_CACHE = "own"
    assert re.search(f"'own': .*({text})", the_check().msg)


@pytest.mark.parametrize(
    ("backend", "client_class"),
    [
        (DJANGO_REDIS, f"{__name__}.OtherClient"),
        (DJANGO_VALKEY, "django_valkey.client.ShardClient"),
    ],
)
def test_a_client_class_that_is_not_supported_is_refused(alias_on, backend, client_class):
    own = alias_on("redis://127.0.0.1:1/0", backend=backend, CLIENT_CLASS=client_class)
    with pytest.raises(ImproperlyConfigured, match="'own': "):
        own.count()


class OtherClient:
    """A client class of django-redis that the package does not know."""

    def __init__(self, *args):
        pass

    def close(self, **options):
        pass


def test_replies_can_be_decoded_and_waits_longer_than_socket_timeout(
    alias_on, either_backend, own_server
):
    options = {"socket_timeout": 0.2, "decode_responses": True}
    if either_backend == DJANGO_REDIS:
        options = {"CONNECTION_POOL_KWARGS": options}
    own = alias_on(own_server.url, backend=either_backend, **options)
    with own.lock("ä", metadata={"é": "è"}):
        assert own.get("ä").metadata == {"é": "è"}
        first = start(lambda: own.lock("ä").acquire())
        waiting(own, "ä", 1)
        second = start(lambda: asyncio.run(_ahold(own, "ä")))
        waiting(own, "ä", 2)
        assert own.lock("ä", blocking_timeout=0.5).acquire() is False
    assert first.result(60)
    assert own.force_release("ä", own.get("ä").token) == 1
    assert second.result(60)


async def _ahold(manager, name="a"):
    async with manager.lock(name):
        return True


def test_the_first_of_several_addresses_is_used(settings, own_server, either_backend):
    location = [own_server.url, "redis://127.0.0.1:1/0"]
    entry = {"BACKEND": either_backend, "LOCATION": location}
    settings.CACHES = {**settings.CACHES, "replicated": entry}
    own = locks.using("replicated")
    for _ in range(5):
        with own.lock("a") as lock:
            assert lock.owned()
    asyncio.run(_ahold(own))


def test_one_shard_stores_the_locks_of_a_prefix(alias_on, own_server, own_redis):
    with Node() as second:
        shards = [own_server.url, second.url]
        options = {"CLIENT_CLASS": "django_redis.client.ShardClient"}
        own = alias_on(shards, backend=DJANGO_REDIS, **options)
        names = {f"n:{number}" for number in range(20)}
        with own.lock_many(names):
            assert {info.name for info in own.active()} == names
            assert own.count() == asyncio.run(own.acount()) == len(names)
            stored = [len(each.keys("*:lock:*")) for each in (own_redis, second.client())]
            assert sorted(stored) == [0, len(names)]


# A client refuses the certificate of another host


@pytest.fixture(scope="module")
def certificates():
    return Certificates()


@pytest.fixture
def server(certificates):
    with Node(tls=certificates) as node:
        yield node


@pytest.fixture
def place(alias_on, server, certificates):
    def make(backend=CORE, **options):
        options = {"ssl_ca_certs": certificates.shown["ssl_ca_certs"], **options}
        if backend != CORE:
            options = {"CONNECTION_POOL_KWARGS": options}
        scheme = "valkeys" if backend == DJANGO_VALKEY else "rediss"
        return alias_on(f"{scheme}://127.0.0.1:{server.port}/0", backend=backend, **options)

    return make


@pytest.fixture
def become_another_host(server, certificates):
    """Give new connections the certificate of another host: the server then stands for an attacker
    who has a certificate of the same authority."""

    def become():
        chain, key = certificates.other_host
        server.client().config_set("tls-cert-file", str(chain), "tls-key-file", str(key))

    return become


@pytest.mark.parametrize("backend", [CORE, DJANGO_REDIS, DJANGO_VALKEY])
def test_a_client_refuses_the_certificate_of_another_host(place, become_another_host, backend):
    assert place(backend).ping()
    become_another_host()
    own = place(backend, socket_timeout=7)  # has no connection yet
    for ask in (own.lock("a").acquire, lambda: asyncio.run(own.lock("a").aacquire())):
        with pytest.raises(redis.ConnectionError, match="ertificate"):
            ask()


@pytest.mark.parametrize(
    "options", [{"ssl_check_hostname": False}, {"ssl_cert_reqs": "none"}], ids=str
)
def test_a_project_can_accept_any_host(place, become_another_host, options):
    become_another_host()
    assert place(**options).ping()


def test_the_renewal_refuses_the_certificate_of_another_host(
    place, become_another_host, moving_clock, caplog
):
    with place().lock("a", timeout=30):
        become_another_host()
        moving_clock.forward(15)
    assert "ertificate" in caplog.text
