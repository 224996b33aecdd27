"""No output contains credentials, even if a password is not percent-encoded and is parsed as
another part of the server's address."""

import asyncio
import logging
import re
import traceback
import warnings
from contextlib import contextmanager
from io import StringIO

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from prometheus_client import CollectorRegistry, generate_latest
from redis.exceptions import ResponseError

from django_redislock import AsyncLock, Lock, LockError, locks, metrics, signals
from django_redislock.backends import servers
from django_redislock.text import error_text
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.pages import DASHBOARD, LIST
from tests.servers.node import Node

from .looking import page_of

pytestmark = pytest.mark.django_db

SENTINELS = {
    "CLIENT_CLASS": "django_redis.client.SentinelClient",
    "SENTINELS": [("127.0.0.1", 1)],
    "SENTINEL_KWARGS": {"password": "p4ss"},
    "CONNECTION_POOL_CLASS_KWARGS": {"password": "w0rd"},
}
UNREACHABLE = {
    "a URL": ("redis://us3r:p4ss%40%2Fw0rd@127.0.0.1:1/0", CORE, {}),
    "an @ in a URL": ("redis://us3r:p4ss@w0rd@127.0.0.1:1/0", CORE, {}),
    "a query": ("redis://127.0.0.1:1/0?username=us3r&password=p4ss", CORE, {}),
    "TLS": ("rediss://us3r:p4ss@127.0.0.1:1/0", CORE, {}),
    "OPTIONS": ("redis://127.0.0.1:1/0", CORE, {"username": "us3r", "password": "p4ss"}),
    "django-redis": ("redis://127.0.0.1:1/0", DJANGO_REDIS, {"PASSWORD": "p4ss"}),
    "credentials": (
        "redis://127.0.0.1:1/0",
        CORE,
        {"credential_provider": redis.UsernamePasswordCredentialProvider("us3r", "p4ss")},
    ),
    "Sentinels": ("redis://master/0", DJANGO_REDIS, SENTINELS),
}
MALFORMED = [
    "redis://us3r:p4ss/w0rd@127.0.0.1:1/0",
    "redis://us3r:p4ss#w0rd@127.0.0.1:1/0",
    "redis://us3r:p4ss?w0rd@127.0.0.1:1/0",
    "redis://us3r:p4ss[w0rd@127.0.0.1:1/0",
    "redis://us3r:[p4ss]w0rd@127.0.0.1:1/0",
    "redis://us3r:p4ss\u2100w0rd@127.0.0.1:1/0",
    "redis://us3r:p4ss,w0rd@127.0.0.1:1/0",
    "redis://us3r:61904/w0rd@127.0.0.1:1/0",
    "redis://:61904/w0rd@127.0.0.1:1/0",
    "redis://us3r:p4ss@127.0.0.1:w0rd/0",
    "us3r:p4ss@127.0.0.1:1",
    "p4ss://us3r:w0rd@127.0.0.1:1",
    "unix://us3r:p4ss/w0rd@/var/run/socket",
    "unix://us3r:p4ss#w0rd@/socket",
]
SECRETS = ("us3r", "p4ss", "w0rd", "61904")


class Output:
    """All texts that the package produces: results, errors, signals, warnings and logs."""

    def __init__(self, caplog):
        self.parts = []
        self._caplog = caplog
        caplog.set_level(logging.DEBUG, "django_redislock")

    @contextmanager
    def listening(self):
        ours = [signal for signal in vars(signals).values() if isinstance(signal, signals.Signal)]
        for signal in ours:
            signal.connect(self._hear)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                for signal in ours:
                    signal.disconnect(self._hear)
        self.parts += map(str, warned)

    def _hear(self, **about):
        self.parts.append(repr({name: value for name, value in about.items() if name != "error"}))

    def by(self, do):
        """Record the result of `do`, or its exception as Python prints it."""
        try:
            self.parts.append(str(do()))
        except Exception as error:
            if _is_ours(error):
                self.parts += [str(error), repr(error), *traceback.format_exception(error)]

    @property
    def text(self):
        ours = [each for each in self._caplog.records if each.name == "django_redislock"]
        logged = [logging.Formatter().format(record) for record in ours]
        return "\n".join([*self.parts, *logged])


def _is_ours(error):
    """Return whether the package made the text. It passes exceptions of redis-py on unchanged."""
    return not isinstance(error, redis.RedisError) or "Lock " in str(error)


@pytest.fixture
def output_of_uses(settings, caplog, operator):
    """Use an alias in all ways, and return the output."""

    def output_of(location, backend=CORE, options=None):
        settings.CACHES = {
            **settings.CACHES,
            "secret": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options or {}},
        }
        settings.REDISLOCK_CACHE = "secret"
        output = Output(caplog)
        with output.listening():
            for do in ways(operator):
                output.by(do)
        return output.text

    return output_of


def ways(operator):
    yield lambda: repr(servers["secret"]) + repr(vars(servers["secret"]))
    yield lambda: servers["secret"].address
    yield lambda: repr(locks) + repr(locks.lock("a")) + repr(locks.everywhere())
    yield lambda: locks.lock("a").acquire(blocking_timeout=0)
    yield lambda: asyncio.run(locks.lock("a").aacquire(blocking=False))
    yield lambda: locks.quorum("a", ["secret", "default", "django_redis"]).acquire(blocking=False)
    yield lambda: locks.get("a")
    yield lambda: locks.health()
    for line in ("check", "check --format=json", "list", "run a -- true"):
        yield lambda line=line: printed("locks", *line.split())
    yield lambda: printed("check", "--deploy", "--tag=caches")
    for address in (LIST, DASHBOARD, page_of("a")):
        yield lambda address=address: operator.get(address).content.decode()
    yield scraped


def printed(*arguments):
    out = StringIO()
    try:
        call_command(*arguments, stdout=out, stderr=out)
    except (CommandError, SystemCheckError, SystemExit) as error:
        out.write("".join(traceback.format_exception(error)))
    return out.getvalue()


def scraped():
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=["secret"])
    return generate_latest(registry).decode()


def assert_no_secret(text):
    text = re.sub(r"127\.0\.0\.1:\d+|0x[0-9a-f]+|\d{16}", "", text)  # they have random digits
    for secret in SECRETS:
        assert secret not in text, text[max(text.index(secret) - 300, 0) :][:400]


@pytest.mark.parametrize("what", UNREACHABLE)
def test_output_about_an_unreachable_server(output_of_uses, what):
    text = output_of_uses(*UNREACHABLE[what])

    assert_no_secret(text)
    assert "onnect" in text or "MasterNotFound" in text, "else nothing was tried"


@pytest.mark.parametrize(
    "location",
    [
        "redis://:p%40ss%2Fw%23rd@host:6379/0",
        "redis://us3r:p@ss@host:6379/0",
        "redis://[::1]:6379/0",
        "redis://us3r:p4ss@host:6379/0?client_name=me@here&password=p@ss",
        "unix:///var/run/a@b.sock",
        "unix://us3r:p4ss@/var/run/socket?db=3",
        "redis://one:6379/0;redis://:p4ss@two:6379/0",
    ],
)
def test_a_well_formed_address_is_accepted(settings, location):
    settings.CACHES = {**settings.CACHES, "secret": {"BACKEND": CORE, "LOCATION": location}}

    assert servers["secret"].address
    assert_no_secret(repr(servers["secret"]) + repr(vars(servers["secret"])))


def test_output_about_a_malformed_address(output_of_uses):
    for location, backend in [(MALFORMED[0], CORE), (MALFORMED[-1], DJANGO_REDIS)]:
        text = output_of_uses(location, backend)
        assert_no_secret(text)
        assert "percent-encoded" in text, location
        assert "redislock.E002" in text, location


@pytest.mark.parametrize("location", MALFORMED)
def test_the_error_of_a_malformed_address(settings, location):
    settings.CACHES = {**settings.CACHES, "secret": {"BACKEND": CORE, "LOCATION": location}}

    with pytest.raises(ImproperlyConfigured, match="percent-encoded") as caught:
        servers["secret"]

    assert_no_secret("".join(traceback.format_exception(caught.value)))


def test_output_about_a_server_that_repeats_requests_in_errors(output_of_uses):
    for command, protocol in ("AUTH", 2), ("HELLO", 3):
        with Node(rename_command=f'{command} ""') as node:
            url = f"redis://us3r:p4ss@127.0.0.1:{node.port}/0"
            client = redis.Redis.from_url(url, protocol=protocol)
            with client, pytest.raises(redis.RedisError):
                client.ping()
            assert_no_secret(output_of_uses(url, CORE, {"protocol": protocol}))


def test_output_about_a_server_that_refuses_the_password_or_the_command(output_of_uses):
    with Node() as node:
        client = node.client()
        client.acl_setuser("us3r", enabled=True, passwords=["+p4ss"], keys=["*"], categories=[])
        for password in ("p4ss", "w0rd"):
            assert_no_secret(output_of_uses(f"redis://us3r:{password}@127.0.0.1:{node.port}/0"))


@pytest.mark.parametrize("setting", ["REDISLOCK_CACHE", "REDISLOCK_CLIENT"])
def test_output_about_an_address_in_another_setting(settings, caplog, operator, setting):
    setattr(settings, setting, "redis://us3r:p4ss@127.0.0.1:1/0")
    output = Output(caplog)

    for do in (lambda: locks.get("a"), lambda: repr(locks), *list(ways(operator))[3:]):
        output.by(do)

    assert_no_secret(output.text)


def test_output_about_a_client_as_the_wrong_argument(settings, caplog):
    client = redis.Redis.from_url("redis://us3r:p4ss@127.0.0.1:1/0")
    twin = redis.asyncio.Redis.from_url("redis://us3r:p4ss@127.0.0.1:1/0")
    settings.REDISLOCK_CLIENT = client
    output = Output(caplog)

    for do in (
        lambda: AsyncLock(client, "a"),
        lambda: Lock(twin, "a"),
        lambda: asyncio.run(Lock(client, "a").aacquire()),
        lambda: locks.get("a"),
        lambda: printed("check", "--tag=caches"),
    ):
        output.by(do)

    assert_no_secret(output.text)
    assert len(output.parts) > 5


OF_REDIS_PY_7 = (
    "No master found for 'm' : <redis.client.Redis(<redis.connection.ConnectionPool("
    "<redis.connection.Connection(db=0,username=us3r,password=p4ss)>),)>w0rd,socket_timeout=None,"
    "retry=<redis.retry.Retry object at 0x7fedeebeaad0>)>)>)> - ConnectionError('Error 111 "
    "connecting to 127.0.0.1:1.')"
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("redis://host?password=p4ss is away", "redis://host?*** is away"),
        ("redis://host/0?db=1&password=p4ss&username=us3r", "redis://host/0?***"),
        ("redis://host/0?client_name=me@here&password=p4ss", "redis://***"),
        ("redis://us3r:61904@host?password=w0rd is away", "redis://***@host?*** is away"),
        ("http://host/?token=p4ss, redis://b?password=w0rd", "http://host/?*** redis://b?***"),
        ("redis://us3r:p4ss,a://w0rd@host/0", "redis://***@host/0"),
        ("redis://:p4ss a://w0rd@host is away", "redis://***@host is away"),
        ("redis://a:1, redis://us3r:p4ss@b:2", "redis://a:1, redis://***@b:2"),
        ("redis://a:1 is away. Why?", "redis://a:1 is away. Why?"),
        (OF_REDIS_PY_7, "No master found for 'm' : *** - ConnectionError('Error 111 connecting"),
        ("unknown command 'AUTH', with args beginning with: 'us3r' 'p4ss' ", "with: ***"),
        ("User us3r has no permissions to run the 'get' command", "User *** has no permissions"),
        ("can't read redis://us3r:p4ss@w0rd@host:1/0 at all", "redis://***@host:1/0 at all"),
        ("redis://us3r:p4ss@h1, redis://us3r:w0rd@h2", "redis://***@h1, redis://***@h2"),
        ("redis://h1;redis://us3r:p4ss, w@rd@h2", "redis://h1;redis://***@h2"),
        ("Error 111 connecting to 127.0.0.1:6379.", "Error 111 connecting to 127.0.0.1:6379."),
        ("Lock '<b>(x)' is held", "Lock '<b>(x)' is held"),
        ("two\nlines \x1b[31m", "two\\nlines \\x1b[31m"),
    ],
)
def test_an_error_is_shown_without_secrets(said, shown):
    text = error_text(ResponseError(said))

    assert shown in text
    assert_no_secret(text)


@pytest.mark.parametrize(
    ("rest", "named"),
    [({"o": object()}, "'o' (object)"), ({"n": float("nan")}, "'n' (float)"), ({7: 1}, "7 (int)")],
    ids=["object", "nan", "int key"],
)
def test_an_error_about_metadata_quotes_no_value(settings, rest, named):
    settings.REDISLOCK_REDACT = ["pass*"]
    metadata = {"password": "w0rd", "note": "p4ss", **rest}

    with pytest.raises((TypeError, ValueError), match="metadata") as caught:
        locks.lock("a", metadata=metadata)

    assert named in str(caught.value)
    assert_no_secret(str(caught.value))


def test_an_error_about_metadata_that_are_no_mapping_quotes_no_value():
    for value in ("p4ss", [("password", "w0rd")], {"us3r", "p4ss"}):
        with pytest.raises(TypeError, match=rf"metadata .* got {type(value).__name__}") as caught:
            locks.lock("a", metadata=value)
        assert_no_secret(str(caught.value))


@pytest.mark.parametrize("redact", [["pass*"], "no list"], ids=["patterns", "invalid"])
def test_a_repr_hides_redacted_metadata(settings, redact):
    metadata = {"password": "w0rd", "deep": [{"PASSPHRASE": "p4ss"}], "order": "public"}
    with locks.lock("a", metadata=metadata, timeout=60) as lock:
        settings.REDISLOCK_REDACT = redact
        info = locks.get("a")
        shown = [repr(info), repr(info.first), repr(list(locks.active()))]
        with pytest.raises(LockError):
            locks.lock("a", metadata=metadata, blocking=False).__enter__()
        assert lock.owned()
    shown.append(repr(locks.history("a")))

    assert_no_secret("".join(shown))
    assert all("***" in each and "'a'" in each for each in (shown[0], *shown[2:]))
    assert ("public" in shown[1]) is (redact != "no list")
    assert info.metadata == metadata
