"""Cache aliases as the servers of locks: prefixes, options, pools, and changed settings."""

import asyncio
import re
from datetime import timedelta

import pytest
import redis
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import locks
from django_redislock.backends import ClientServer, servers, supports_locks
from django_redislock.checks import check_server, check_settings
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import start, waiting
from tests.servers import Certificates, Node


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
    uses = [
        unfit.lock("a").acquire,
        unfit.count,
        lambda: unfit.assert_held("a"),
        lambda: asyncio.run(unfit.lock("a").aacquire()),
    ]
    for use in uses:
        with pytest.raises(ImproperlyConfigured, match="'unfit'") as caught:
            use()
        assert backend in str(caught.value)
    settings.REDISLOCK_CACHE = "unfit"
    message = the_check()
    assert message.is_serious()
    assert "'unfit'" in message.msg
    assert backend in message.msg
    assert "REDISLOCK_CACHE" in message.hint


def the_check():
    """Return the message of the system checks about an alias that cannot be used."""
    assert check_server(None) == []
    [message] = check_settings(None)
    assert message.id == "redislock.E002"
    return message


POOL = "redis.BlockingConnectionPool"


MISTAKEN = {
    "address": (CORE, {"LOCATION": "redis://.example.com:6379/0"}, ""),
    "no address": (CORE, {"LOCATION": []}, ""),
    "option": (CORE, {"socket_timeoutt": 5}, "socket_timeoutt"),
    "value": (CORE, {"max_connections": "many"}, "max_connections"),
    "database": (CORE, {"db": "x"}, "db must be a number, got 'x'"),
    "timeout": (CORE, {"socket_timeout": "5"}, "socket_timeout must be at least"),
    "timedelta": (CORE, {"socket_connect_timeout": timedelta(seconds=5)}, "connect_timeout"),
    "interval": (CORE, {"health_check_interval": "30"}, "health_check_interval"),
    "protocol": (CORE, {"protocol": 5}, "protocol must be"),
    "pool": (CORE, {"pool_class": "redis.NoPool"}, "NoPool"),
    "pool's timeout": (CORE, {"pool_class": POOL, "timeout": "20"}, "timeout must be at least 0"),
    "class": ("django.core.cache.backends.redis.NoCache", {}, "NoCache"),
    "django-redis's timeout": (DJANGO_REDIS, {"SOCKET_TIMEOUT": "5"}, "Socket timeout"),
    "django-redis's client": (DJANGO_REDIS, {"CLIENT_CLASS": "nowhere.Client"}, "nowhere"),
    "retry": (CORE, {"retry": 3}, "retry must be a Retry|'int' object has no"),
}


@pytest.mark.parametrize(("backend", "options", "text"), MISTAKEN.values(), ids=MISTAKEN)
def test_an_alias_with_invalid_options_is_named(settings, alias_on, backend, options, text):
    others = {**options}
    mistaken = alias_on(others.pop("LOCATION", "redis://mistaken"), backend=backend, **others)
    uses = [mistaken.lock("a").acquire, mistaken.count]
    if "retry" not in options:  # asyncio connections do not get it
        uses.append(lambda: asyncio.run(mistaken.acount()))
    for use in uses:
        with pytest.raises(ImproperlyConfigured, match=f"'own': .*({text})"):
            use()
    if "LOCATION" in options:
        assert "own" not in [each.alias for each in locks.everywhere()]
    settings.REDISLOCK_CACHE = "own"
    message = the_check()
    assert re.search(f"'own': .*({text})", message.msg)
    wrong = "OPTIONS" if backend in (CORE, DJANGO_REDIS) else "BACKEND"
    assert ("LOCATION" if "LOCATION" in options else wrong) in message.hint
    assert "REDISLOCK_CACHE" not in message.hint


def test_a_client_class_that_is_not_supported_is_refused(alias_on):
    url = "redis://127.0.0.1:1/0"
    unknown = alias_on(url, backend=DJANGO_REDIS, CLIENT_CLASS=f"{__name__}.OtherClient")
    sharded = "django_valkey.client.ShardClient"
    backend = "django_valkey.cache.ValkeyCache"
    for each in (unknown, alias_on(url, alias="other", backend=backend, CLIENT_CLASS=sharded)):
        with pytest.raises(ImproperlyConfigured, match=f"'{each.alias}': "):
            each.count()


class PoolOfTheProject(redis.ConnectionPool):
    def make_connection(self):
        return super().make_connection()


def test_a_pool_class_of_the_project_is_used_as_it_is(alias_on, own_server):
    options = {"CONNECTION_POOL_CLASS": f"{__name__}.PoolOfTheProject"}
    own = alias_on(own_server.url, backend=DJANGO_REDIS, **options)
    with own.lock("a"):
        assert own.count() == 1
    pool = own._server().client.connection_pool
    assert isinstance(pool, PoolOfTheProject)


class OtherClient:
    """A client class of django-redis that the package does not know."""

    def __init__(self, *args):
        pass

    def close(self, **options):
        pass


def test_the_service_name_of_sentinels_need_not_be_a_valid_host_name(alias_on):
    service = f"redis://{'orders-' * 10}/0"
    sentinels = {
        "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "SENTINELS": [("127.0.0.1", 1)],
    }
    with pytest.raises(ImproperlyConfigured, match="address in LOCATION is invalid"):
        supports_locks(alias_on(service).alias)
    factory = "django_redis.pool.SentinelConnectionFactory"
    with override_settings(DJANGO_REDIS_CONNECTION_FACTORY=factory):
        own = alias_on(service, backend=DJANGO_REDIS, **sentinels)
        assert supports_locks(own.alias)
        client = asyncio.run(servers[own.alias].async_client())
    assert client.connection_pool.service_name == "orders-" * 10


@pytest.mark.parametrize("decode", [False, True])
def test_replies_can_be_decoded_and_waits_longer_than_socket_timeout(
    alias_on, either_backend, own_server, decode
):
    options = {"socket_timeout": 0.2, "decode_responses": decode}
    if either_backend == DJANGO_REDIS:
        options = {"CONNECTION_POOL_KWARGS": options}
    own = alias_on(own_server.url, backend=either_backend, **options)
    with own.lock("ä", metadata={"é": "è"}) as lock:
        assert lock.fence_token == own.get("ä").fence_token
        assert own.get("ä").metadata == {"é": "è"}
        assert [info.name for info in own.active("ä*")] == ["ä"]
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


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (redis.Redis(host="localhost", port=7000, db=3), "127.0.0.1:7000"),
        (redis.Redis(unix_socket_path="/run/redis"), "/run/redis"),
        (redis.sentinel.Sentinel([("127.0.0.1", 1)]).master_for("cache"), None),
        (redis.RedisCluster.__new__(redis.RedisCluster), None),
    ],
    ids=["tcp", "unix socket", "sentinel", "cluster"],
)
def test_the_address_of_a_server_comes_from_its_client(client, address):
    # It sends no request, so it makes no difference whether there is a server.
    assert ClientServer(client).address == address


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


def test_an_idle_connection_is_replaced_after_the_health_check_interval(
    alias_on, own_server, own_redis
):
    own = alias_on(own_server.url, health_check_interval=1e-9)

    def connections():
        return own_redis.info("stats")["total_connections_received"]

    own.count()
    before = connections()
    own.count()
    assert connections() == before + 1


def test_tls_by_the_connection_class(alias_on):
    certificates = Certificates()
    with Node(tls=certificates, tls_auth_clients="yes") as node:
        url = node.url.replace("rediss:", "redis:")
        own = alias_on(url, connection_class=redis.SSLConnection, **certificates.shown)
        with own.lock("a") as lock:
            assert lock.owned()
        assert asyncio.run(_ahold(own))


# A client refuses the certificate of another host


DJANGO_VALKEY = "django_valkey.cache.ValkeyCache"


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
        url = f"{scheme}://127.0.0.1:{server.port}/0"
        return alias_on(url, backend=backend, **options)

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
def test_a_client_refuses_the_certificate_of_another_host(
    settings, place, become_another_host, backend
):
    settings.REDISLOCK_CACHE = "own"
    assert place(backend).ping()
    assert "redislock.W005" not in {each.id for each in run_checks(include_deployment_checks=True)}
    become_another_host()
    own = place(backend, socket_timeout=7)  # has no connection yet
    for ask in (own.lock("a").acquire, lambda: asyncio.run(own.lock("a").aacquire())):
        with pytest.raises(redis.ConnectionError, match="ertificate"):
            ask()


@pytest.mark.parametrize("backend", [CORE, DJANGO_REDIS])
@pytest.mark.parametrize(
    "options", [{"ssl_check_hostname": False}, {"ssl_cert_reqs": "none"}], ids=str
)
def test_a_project_can_accept_any_host(place, become_another_host, backend, options):
    become_another_host()
    assert place(backend, **options).ping()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_renewal_refuses_the_certificate_of_another_host(
    place, become_another_host, moving_clock, caplog, colour
):
    lock = place().lock("a", timeout=30)

    async def hold():
        async with lock:
            become_another_host()
            await moving_clock.aforward(15)

    if colour == "async":
        asyncio.run(hold())
    else:
        with lock:
            become_another_host()
            moving_clock.forward(15)
    assert "ertificate" in caplog.text
