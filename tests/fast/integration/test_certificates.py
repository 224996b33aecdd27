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
def place(alias_on, server, certificates):
    """Make an alias on the server, and return its locks."""

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
