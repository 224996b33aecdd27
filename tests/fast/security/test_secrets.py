"""No output contains credentials, even if a password is not percent-encoded and is parsed as
another part of the server's address."""

import asyncio
import logging
import re
import traceback
from io import StringIO

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from redis.exceptions import ResponseError

from django_redislock import AsyncLock, Lock, LockError, locks
from django_redislock.backends import servers
from django_redislock.text import error_text
from tests.lock_fixtures import CORE, DJANGO_REDIS
from tests.lock_tools import start, waiting
from tests.servers.node import Node

from .looking import AWAY, uses_of_the_alias, ways_to_see, ways_to_see_the_past

pytestmark = pytest.mark.django_db

SENTINELS = {
    "CLIENT_CLASS": "django_redis.client.SentinelClient",
    "SENTINELS": [("127.0.0.1", 1)],
    "SENTINEL_KWARGS": {"password": "p4ss"},
    "CONNECTION_POOL_CLASS_KWARGS": {"password": "w0rd"},
}
PROVIDER = redis.UsernamePasswordCredentialProvider("us3r", "p4ss")
NOWHERE = "redis://127.0.0.1:1/0"
UNREACHABLE = {
    "a URL": ("redis://us3r:p4ss%40%2Fw0rd@127.0.0.1:1/0", CORE, {}),
    "an @ in a URL": ("redis://us3r:p4ss@w0rd@127.0.0.1:1/0", CORE, {}),
    "a query": (f"{NOWHERE}?username=us3r&password=p4ss", CORE, {}),
    "TLS": ("rediss://us3r:p4ss@127.0.0.1:1/0", CORE, {}),
    "OPTIONS": (NOWHERE, CORE, {"username": "us3r", "password": "p4ss"}),
    "django-redis": (NOWHERE, DJANGO_REDIS, {"PASSWORD": "p4ss"}),
    "credentials": (NOWHERE, CORE, {"credential_provider": PROVIDER}),
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
WELL_FORMED = [
    "redis://:p%40ss%2Fw%23rd@host:6379/0",
    "redis://us3r:p@ss@host:6379/0",
    "redis://[::1]:6379/0",
    "redis://us3r:p4ss@host:6379/0?client_name=me@here&password=p@ss",
    "unix://us3r:p4ss@/var/run/a@b.sock?db=3",
    "redis://one:6379/0;redis://:p4ss@two:6379/0",
]
SECRETS = ("us3r", "p4ss", "w0rd", "61904")


def output_of(caplog, uses):
    """Return what the package produces in these uses: results, errors and logs."""
    caplog.set_level(logging.DEBUG, "django_redislock")
    parts = []
    for use in uses:
        try:
            parts.append(str(use()))
        except Exception as error:
            # The package passes exceptions of redis-py on unchanged.
            if not isinstance(error, redis.RedisError) or "Lock " in str(error):
                parts += [repr(error), *traceback.format_exception(error)]
    ours = [each for each in caplog.records if each.name == "django_redislock"]
    return "\n".join([*parts, *map(logging.Formatter().format, ours)])


@pytest.fixture
def output_about(settings, caplog, operator):
    """Use an alias in all ways, and return the output."""

    def output_about(location, backend=CORE, options=None):
        settings.CACHES = {
            **settings.CACHES,
            "away": AWAY,
            "secret": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options or {}},
        }
        settings.REDISLOCK_CACHE = "secret"
        about = [
            lambda: repr(servers["secret"]) + repr(vars(servers["secret"])),
            lambda: servers["secret"].address,
            system_checks,
        ]
        return output_of(caplog, [*about, *uses_of_the_alias(operator)])

    return output_about


def system_checks():
    out = StringIO()
    try:
        call_command("check", "--deploy", "--tag=caches", stdout=out, stderr=out)
    except SystemCheckError as error:
        out.write(str(error))
    return out.getvalue()


def assert_no_secret(text):
    text = re.sub(r"127\.0\.0\.1:\d+|0x[0-9a-f]+|\d{16}", "", text)  # they have random digits
    for secret in SECRETS:
        assert secret not in text, text[max(text.index(secret) - 300, 0) :][:400]


@pytest.mark.parametrize("what", UNREACHABLE)
def test_output_about_an_unreachable_server(output_about, what):
    text = output_about(*UNREACHABLE[what])

    assert_no_secret(text)
    assert "onnect" in text or "MasterNotFound" in text, "else nothing was tried"


@pytest.mark.parametrize("location", [*WELL_FORMED, *MALFORMED])
def test_a_malformed_address_is_refused(settings, location):
    settings.CACHES = {**settings.CACHES, "secret": {"BACKEND": CORE, "LOCATION": location}}

    if location in WELL_FORMED:
        assert servers["secret"].address
        assert_no_secret(repr(servers["secret"]) + repr(vars(servers["secret"])))
        return
    with pytest.raises(ImproperlyConfigured, match="percent-encoded") as caught:
        servers["secret"]
    assert_no_secret("".join(traceback.format_exception(caught.value)))


def test_output_about_a_malformed_address(output_about):
    for location, backend in [(MALFORMED[0], CORE), (MALFORMED[-1], DJANGO_REDIS)]:
        text = output_about(location, backend)
        assert_no_secret(text)
        assert "percent-encoded" in text, location
        assert "redislock.E002" in text, location


def test_output_about_a_server_that_refuses_the_password_or_the_command(output_about):
    for command, protocol in ("AUTH", 2), ("HELLO", 3):  # it repeats the request in its error
        with Node(rename_command=f'{command} ""') as node:
            url = f"redis://us3r:p4ss@127.0.0.1:{node.port}/0"
            assert_no_secret(output_about(url, CORE, {"protocol": protocol}))
    with Node() as node:
        client = node.client()
        client.acl_setuser("us3r", enabled=True, passwords=["+p4ss"], keys=["*"], categories=[])
        for password in ("p4ss", "w0rd"):
            assert_no_secret(output_about(f"redis://us3r:{password}@127.0.0.1:{node.port}/0"))


@pytest.mark.parametrize("setting", ["REDISLOCK_CACHE", "REDISLOCK_CLIENT"])
def test_output_about_an_address_in_another_setting(settings, caplog, operator, setting):
    setattr(settings, setting, "redis://us3r:p4ss@127.0.0.1:1/0")

    assert_no_secret(output_of(caplog, uses_of_the_alias(operator)))


def test_output_about_a_client_as_the_wrong_argument(settings, caplog):
    client = redis.Redis.from_url("redis://us3r:p4ss@127.0.0.1:1/0")
    twin = redis.asyncio.Redis.from_url("redis://us3r:p4ss@127.0.0.1:1/0")
    settings.REDISLOCK_CLIENT = client

    uses = [lambda: AsyncLock(client, "a"), lambda: Lock(twin, "a"), system_checks]
    uses += [lambda: asyncio.run(Lock(client, "a").aacquire()), lambda: locks.get("a")]
    text = output_of(caplog, uses)

    assert_no_secret(text)
    assert text.count("Error") > 3


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
        ("redis://host/0?client_name=me@here&password=p4ss", "redis://***"),
        ("redis://us3r:61904@host?password=w0rd is away", "redis://***@host?*** is away"),
        ("http://host/?token=p4ss, redis://b?password=w0rd", "http://host/?*** redis://b?***"),
        ("redis://us3r:p4ss,a://w0rd@host/0", "redis://***@host/0"),
        ("redis://a:1, redis://us3r:p4ss@b:2", "redis://a:1, redis://***@b:2"),
        ("redis://a:1 is away. Why?", "redis://a:1 is away. Why?"),
        (OF_REDIS_PY_7, "No master found for 'm' : *** - ConnectionError('Error 111 connecting"),
        ("unknown command 'AUTH', with args beginning with: 'us3r' 'p4ss' ", "with: ***"),
        ("User us3r has no permissions to run the 'get' command", "User *** has no permissions"),
        ("redis://h1;redis://us3r:p4ss, w@rd@h2", "redis://h1;redis://***@h2"),
        ("Lock '<b>(x)' is held", "Lock '<b>(x)' is held"),
        ("two\nlines \x1b[31m", "two\\nlines \\x1b[31m"),
    ],
)
def test_an_error_is_shown_without_secrets(said, shown):
    text = error_text(ResponseError(said))

    assert shown in text
    assert_no_secret(text)


SECRET = {"password": "w0rd", "note": "p4ss"}


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        (SECRET | {"o": object()}, "'o' (object)"),
        (SECRET | {"n": float("nan")}, "'n' (float)"),
        (SECRET | {7: 1}, "7 (int)"),
        ("p4ss", "got str"),
        ([("password", "w0rd")], "got list"),
    ],
    ids=["object", "nan", "int key", "str", "list"],
)
def test_an_error_about_metadata_quotes_no_value(metadata, named):
    with pytest.raises((TypeError, ValueError), match="metadata") as caught:
        locks.lock("a", metadata=metadata)

    assert named in str(caught.value)
    assert_no_secret(str(caught.value))


@pytest.mark.parametrize("redact", [["pass*"], "no list"], ids=["patterns", "invalid"])
def test_redacted_metadata_is_shown_nowhere(settings, operator, redact):
    metadata = {"password": "w0rd", "deep": [{"PASSPHRASE": "p4ss"}], "order": "public"}
    is_valid = redact != "no list"
    with locks.lock("a", metadata=metadata, timeout=60):
        settings.REDISLOCK_REDACT = redact
        info = locks.get("a")
        shown = [repr(info.first), repr(info), repr(list(locks.active()))]
        with pytest.raises(LockError):
            locks.lock("a", metadata=metadata, blocking=False).__enter__()
        waiter = start(locks.lock("a", metadata=metadata).acquire)
        waiting(locks, "a", 1)
        if is_valid:
            shown += [see() for _, see in ways_to_see("a", operator)]
    waiter.result(60)
    locks.force_release("a")
    shown.append(repr(locks.history("a")))
    if is_valid:
        shown += [see() for _, see in ways_to_see_the_past("a", operator)]

    assert_no_secret("".join(shown))
    assert all("***" in each for each in shown if "public" in each)
    assert ("public" in shown[0]) is is_valid
    assert not is_valid or sum("public" in each for each in shown) > 10
    assert info.metadata == metadata
