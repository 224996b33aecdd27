"""A client refuses the certificate of another host, with each version of redis-py."""

import asyncio
import select
import socket
import ssl
import threading
from contextlib import suppress

import pytest
import redis
from django.core.checks import run_checks

from django_redislock import locks
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import warnings_of_block
from tests.servers import Certificates
from tests.tools import wait_until

DJANGO_VALKEY = "django_valkey.cache.ValkeyCache"
BACKENDS = [CORE, DJANGO_REDIS, DJANGO_VALKEY]


@pytest.fixture(scope="module")
def certificates():
    return Certificates()


class TLSProxy:
    """Forwards connections to a server, and shows a certificate to the clients.

    From the moment when `is_other` becomes true, new connections get the certificate of another
    host: it stands for an attacker, who has a certificate of the same authority.
    """

    def __init__(self, port, certificates):
        self.is_other = False
        self.refused = 0
        self.heard = b""
        self._port = port
        own = certificates.server["tls_cert_file"], certificates.server["tls_key_file"]
        self._contexts = [_context(*own), _context(*certificates.other_host)]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(30)
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        is_other = self.is_other
        try:
            secured = self._contexts[is_other].wrap_socket(connection, server_side=True)
            if is_other:  # A client of TLS 1.3 refuses after the server has finished.
                self.heard += secured.recv(1000)
                secured.close()
                return
        except OSError:
            self.refused += is_other
            connection.close()
            return
        _relay(secured, socket.create_connection(("127.0.0.1", self._port)))

    def close(self):
        self._listener.close()


def _context(chain, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context


def _relay(secured, server):
    """Forward both ways in one thread, because two threads must not use a TLS socket at once."""
    other = {secured: server, server: secured}
    with suppress(OSError), secured, server:
        while True:
            ready = [secured] if secured.pending() else select.select([*other], [], [])[0]
            for source in ready:
                data = source.recv(65536)
                if not data:
                    return
                other[source].sendall(data)


@pytest.fixture
def proxy(own_server, certificates):
    proxy = TLSProxy(own_server.port, certificates)
    yield proxy
    proxy.close()


def options_for(backend, **options):
    if backend == CORE:
        return options
    return {"CONNECTION_POOL_KWARGS": options}


@pytest.fixture
def place(alias_on, own_server, proxy, certificates, settings):
    """Make an alias whose server is behind the proxy, and return its locks."""

    def make(backend=CORE, scheme="rediss", **options):
        options = {"ssl_ca_certs": certificates.shown["ssl_ca_certs"], **options}
        url = own_server.url.replace(f":{own_server.port}", f":{proxy.port}")
        url = url.replace("redis://", f"{scheme}://")
        settings.REDISLOCK_CACHE = "own"
        return alias_on(url, backend=backend, **options_for(backend, **options))

    return make


def scheme_of(backend):
    return "valkeys" if backend == DJANGO_VALKEY else "rediss"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_refuses_the_certificate_of_another_host(place, proxy, backend):
    manager = place(backend, scheme_of(backend))
    assert manager.lock("a").acquire(blocking=False)
    assert manager.force_release("a")
    proxy.is_other = True
    own = place(backend, scheme_of(backend), socket_timeout=7)  # has no connection yet

    with pytest.raises(redis.ConnectionError, match="ertificate"):
        own.lock("a").acquire(blocking=False)
    with pytest.raises(redis.ConnectionError, match="ertificate"):
        asyncio.run(own.lock("a").aacquire(blocking=False))
    wait_until(lambda: proxy.refused >= 2)
    assert proxy.heard == b""


@pytest.mark.parametrize(
    ("backend", "is_async"), [(CORE, True), (DJANGO_REDIS, False)], ids=["async", "sync"]
)
def test_the_renewal_refuses_the_certificate_of_another_host(place, proxy, backend, is_async):
    lock = place(backend, scheme_of(backend)).lock("a", timeout=1.5)

    async def hold():
        assert await lock.aacquire(blocking=False)
        proxy.is_other = True
        await asyncio.to_thread(wait_until, lambda: proxy.refused)
        with suppress(redis.RedisError):
            await lock.arelease()

    if is_async:
        asyncio.run(asyncio.wait_for(hold(), 60))
    else:
        assert lock.acquire(blocking=False)
        proxy.is_other = True
        wait_until(lambda: proxy.refused)
        with suppress(redis.RedisError):
            lock.release()
    assert proxy.heard == b""


def test_a_waiter_refuses_the_certificate_of_another_host(place, proxy):
    manager = place()
    holder = manager.lock("a", timeout=30, auto_renewal=False)
    assert holder.acquire(blocking=False)
    proxy.is_other = True

    with suppress(redis.ConnectionError):
        manager.lock("a", auto_renewal=False).acquire(blocking_timeout=3)

    assert proxy.refused
    assert proxy.heard == b""
    with suppress(redis.RedisError):
        holder.release()


@pytest.mark.parametrize("backend", [CORE, DJANGO_REDIS])
@pytest.mark.parametrize(
    "options", [{"ssl_check_hostname": False}, {"ssl_cert_reqs": "none"}], ids=str
)
def test_a_project_can_accept_any_host(place, proxy, backend, options):
    proxy.is_other = True
    manager = place(backend, **options)

    with suppress(redis.RedisError):  # the proxy hears the first request, and hangs up
        manager.lock("a").acquire(blocking=False)

    wait_until(lambda: proxy.heard)


def client_options():
    return {"ssl": True, "ssl_check_hostname": False}


def unchecked_client():
    return redis.Redis(host="127.0.0.1", port=1, ssl=True, ssl_check_hostname=False)


def checked_client():
    return redis.Redis(host="127.0.0.1", port=1, ssl=True, ssl_check_hostname=True)


def unverified_client():
    return redis.Redis(
        host="127.0.0.1", port=1, ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False
    )


def client_without_tls():
    return redis.Redis(host="127.0.0.1", port=1)


def client_of_sentinels():
    sentinels = redis.Sentinel([("127.0.0.1", 1)], sentinel_kwargs=client_options())
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

    found = {each.id: each for each in run_checks(include_deployment_checks=True)}

    assert ("redislock.W005" in found) is is_reported
    assert "redislock.E002" not in found
    if is_reported:
        assert "ssl_check_hostname" in found["redislock.W005"].hint


def test_an_alias_with_tls_is_not_W005(place):
    place()

    assert "redislock.W005" not in {each.id for each in run_checks(include_deployment_checks=True)}
    assert locks.ping() < 60


def test_the_end_of_an_event_loop_closes_its_connections(place, own_redis):
    own = place()

    def is_reading_the_inbox():
        return own_redis.info("clients")["blocked_clients"]

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
