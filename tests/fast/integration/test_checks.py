"""The system checks of `manage.py check`. E002 is in test_connection."""

from functools import partial

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

from django_redislock import locks
from django_redislock.checks import check_settings

ABOUT_TASKS = {"redislock.W006"}

# For REDISLOCK_CLIENT.
unchecked_client = partial(Redis, port=1, ssl=True, ssl_check_hostname=False)
checked_client = partial(Redis, port=1, ssl=True, ssl_check_hostname=True)


def messages(*, deploy=False):
    """Return the messages of the package by id, without those about the tasks of other tests."""
    found = run_checks(include_deployment_checks=deploy)
    ours = [each for each in found if (each.id or "").startswith("redislock")]
    return {each.id: each for each in ours if each.id not in ABOUT_TASKS}


def only_with_deploy(id):
    assert messages() == {}
    [(found, message)] = messages(deploy=True).items()
    assert found == id
    return message.msg


@pytest.mark.parametrize("alias", ["nope", None])
def test_an_alias_that_does_not_exist_is_E001(settings, alias):
    settings.REDISLOCK_CACHE = alias
    assert set(messages(deploy=True)) == {"redislock.E001"}
    assert repr(alias) in messages()["redislock.E001"].msg
    assert "'default'" in messages()["redislock.E001"].hint
    with pytest.raises(ImproperlyConfigured):
        locks.count()


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("REDISLOCK_CLIENT", "no.such.module"),
        ("REDISLOCK_CLIENT", {"default": None}),
        ("REDISLOCK_CLIENT", {"no alias": "os.getcwd"}),
        ("REDISLOCK_HISTORY", -1),
        ("REDISLOCK_REDACT", "password"),
        ("REDISLOCK_PREFIX", None),
        ("REDISLOCK_TIMEOUT", "soon"),
    ],
    ids=str,
)
def test_a_setting_that_is_wrong_is_E003_alone(settings, setting, wrong):
    setattr(settings, setting, wrong)
    [message] = check_settings(None)
    assert message.id == "redislock.E003"
    assert setting in message.msg


def no_client():
    raise KeyError("REDIS")


@pytest.mark.parametrize(
    ("path", "wrong"), [("os.getcwd", "got a str"), (f"{__name__}.no_client", "KeyError('REDIS')")]
)
def test_a_callable_that_returns_no_client_is_E003(settings, path, wrong):
    settings.REDISLOCK_CLIENT = path
    assert wrong in only_with_deploy("redislock.E003")


def test_a_server_that_evicts_is_W001(settings, own_locks, own_redis):
    settings.REDISLOCK_CACHE = "own"
    assert messages(deploy=True) == {}
    own_redis.config_set("maxmemory-policy", "volatile-ttl")
    message = only_with_deploy("redislock.W001")
    assert "'own'" in message
    assert "volatile-ttl" in message


def test_an_unreachable_server_is_W002(settings, alias_on):
    alias_on("redis://127.0.0.1:1/0")
    settings.REDISLOCK_CACHE = "own"
    assert "'own'" in only_with_deploy("redislock.W002")


def test_a_database_that_a_cache_shares_is_W003(settings, alias_on):
    assert "clear()" in only_with_deploy("redislock.W003")
    alias_on("redis://mistaken/1", socket_timeoutt=5)
    settings.REDISLOCK_CACHE = "django_redis"
    assert "'default'" in only_with_deploy("redislock.W003")


def key_of_a_tenant(key, key_prefix, version):
    return f"tenant:{key_prefix}:{version}:{key}"


def test_a_key_function_is_W004(settings, alias_on, own_server):
    alias_on(own_server.url)
    settings.REDISLOCK_CACHE = "own"
    own = settings.CACHES["own"]
    default = "django.core.cache.backends.base.default_key_func"
    settings.CACHES = {**settings.CACHES, "own": own | {"KEY_FUNCTION": default}}
    assert messages() == {}
    wrong = f"{__name__}.key_of_a_tenant"
    settings.CACHES = {**settings.CACHES, "own": own | {"KEY_FUNCTION": wrong}}
    [(id, message)] = messages().items()
    assert id == "redislock.W004"
    assert "'own'" in message.msg


@pytest.mark.parametrize(
    ("make", "is_reported"),
    [
        ("unchecked_client", True),
        ("checked_client", False),
    ],
)
def test_a_client_that_accepts_any_host_is_W005(settings, make, is_reported):
    settings.REDISLOCK_CLIENT = f"{__name__}.{make}"
    assert ("redislock.W005" in messages(deploy=True)) is is_reported
