"""A client refuses the certificate of another host, with each version of redis-py."""

import asyncio

import pytest
import redis
from django.core.checks import run_checks

from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import warnings_of_block
from tests.servers import Certificates, Node
from tests.tools import wait_until

DJANGO_VALKEY = "django_valkey.cache.ValkeyCache"


@pytest.fixture(scope="module")
def certificates():
    return Certificates()


@pytest.fixture
def server(certificates):
    with Node(tls=certificates) as node:
        yield node


@pytest.fixture
def become_another_host(server, certificates):
    """Give new connections the certificate of another host: the server then stands for an attacker
    who has a certificate of the same authority."""

    def become():
        chain, key = certificates.other_host
        server.client().config_set("tls-cert-file", str(chain), "tls-key-file", str(key))

    return become


@pytest.fixture
def place(alias_on, server, certificates, settings):
    """Make an alias on the server, and return its locks."""

    def make(backend=CORE, **options):
        settings.REDISLOCK_CACHE = "own"
        options = {"ssl_ca_certs": certificates.shown["ssl_ca_certs"], **options}
        if backend != CORE:
            options = {"CONNECTION_POOL_KWARGS": options}
        scheme = "valkeys" if backend == DJANGO_VALKEY else "rediss"
        url = f"{scheme}://127.0.0.1:{server.port}/0"
        return alias_on(url, backend=backend, **options)

    return make


@pytest.mark.parametrize("backend", [CORE, DJANGO_REDIS, DJANGO_VALKEY])
def test_a_client_refuses_the_certificate_of_another_host(place, become_another_host, backend):
    manager = place(backend)
    assert manager.ping()
    become_another_host()
    own = place(backend, socket_timeout=7)  # has no connection yet

    with pytest.raises(redis.ConnectionError, match="ertificate"):
        own.lock("a").acquire(blocking=False)
    with pytest.raises(redis.ConnectionError, match="ertificate"):
        asyncio.run(own.lock("a").aacquire(blocking=False))


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


@pytest.mark.parametrize("backend", [CORE, DJANGO_REDIS])
@pytest.mark.parametrize(
    "options", [{"ssl_check_hostname": False}, {"ssl_cert_reqs": "none"}], ids=str
)
def test_a_project_can_accept_any_host(place, become_another_host, backend, options):
    become_another_host()
    assert place(backend, **options).ping()


def unchecked_client():
    return redis.Redis(port=1, ssl=True, ssl_check_hostname=False)


def checked_client():
    return redis.Redis(port=1, ssl=True, ssl_check_hostname=True)


def unverified_client():
    return redis.Redis(port=1, ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False)


def client_without_tls():
    return redis.Redis(port=1)


def client_of_sentinels():
    options = {"ssl": True, "ssl_check_hostname": False}
    sentinels = redis.Sentinel([("127.0.0.1", 1)], sentinel_kwargs=options)
    return sentinels.master_for("locks", ssl=True, ssl_check_hostname=True)


@pytest.mark.parametrize(
    ("make", "is_reported"),
    [
        (unchecked_client, True),
        (checked_client, False),
        (unverified_client, False),
        (client_without_tls, False),
        (client_of_sentinels, True),
    ],
)
def test_a_client_of_the_project_that_accepts_any_host_is_W005(settings, make, is_reported):
    settings.REDISLOCK_CLIENT = f"{__name__}.{make.__name__}"
    found = {each.id for each in run_checks(include_deployment_checks=True)}
    assert ("redislock.W005" in found) is is_reported
    assert "redislock.E002" not in found


def test_an_alias_with_tls_is_not_W005(place):
    place()
    assert "redislock.W005" not in {each.id for each in run_checks(include_deployment_checks=True)}


def test_the_end_of_an_event_loop_closes_its_connections(place, server):
    own = place()

    def is_reading_the_inbox():
        return server.client().info("clients")["blocked_clients"]

    async def use():
        async with own.lock("a"):
            waiter = asyncio.create_task(own.lock("a").aacquire())
            await asyncio.to_thread(wait_until, is_reading_the_inbox)
            waiter.cancel()

    with warnings_of_block() as warned:
        for _ in range(5):
            asyncio.run(use())
            # The server notices a little later that the reader is gone.
            wait_until(lambda: not is_reading_the_inbox())
    assert [text for text in warned if "unclosed" in text] == []
