"""The system checks of `manage.py check`."""

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

from django_redislock import locks
from django_redislock.checks import check_settings
from tests.lock_fixtures import CORE, DJANGO_REDIS

ABOUT_TASKS = {"redislock.W006"}


def messages(*, deploy=False):
    """Return the messages of the package by id, without those about the tasks of other tests."""
    found = run_checks(include_deployment_checks=deploy)
    ours = [each for each in found if (each.id or "").startswith("redislock")]
    return {each.id: each for each in ours if each.id not in ABOUT_TASKS}


def test_a_valid_configuration_has_no_message():
    assert messages() == {}


@pytest.mark.parametrize("alias", ["nope", None, 5, {}])
def test_an_alias_that_does_not_exist_is_E001(settings, alias):
    settings.REDISLOCK_CACHE = alias
    assert set(messages(deploy=True)) == {"redislock.E001"}
    assert repr(alias) in messages()["redislock.E001"].msg
    assert "'default'" in messages()["redislock.E001"].hint
    with pytest.raises(ImproperlyConfigured):
        locks.count()


def test_a_backend_that_cannot_be_imported_is_E002(settings):
    settings.CACHES = {**settings.CACHES, "broken": {"BACKEND": "nowhere.at.All"}}
    settings.REDISLOCK_CACHE = "broken"
    # Django's own checks raise on such a backend.
    [message] = check_settings(None)
    assert message.id == "redislock.E002"
    assert "'broken'" in message.msg
    assert "nowhere.at.All" in message.msg
    assert "BACKEND" in message.hint


@pytest.mark.parametrize(
    "path",
    [
        *("no.such.module", "os.environ", 5),
        *({"default": "no.such.module"}, {"default": None}, {5: "os.getcwd"}),
        {"elsewhere": "os.getcwd"},  # no cache alias
    ],
    ids=str,
)
def test_a_client_setting_that_is_wrong_is_E003_alone(settings, path):
    settings.REDISLOCK_CLIENT = path
    for deploy in (False, True):
        [(id, message)] = messages(deploy=deploy).items()
        assert id == "redislock.E003"
        assert "REDISLOCK_CLIENT" in message.msg


def test_another_alias_that_is_invalid_shares_no_database(settings, alias_on):
    alias_on("redis://mistaken/1", socket_timeoutt=5)
    settings.REDISLOCK_CACHE = "django_redis"
    assert set(messages(deploy=True)) == {"redislock.W003"}


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("os.getcwd", "got a str"),
        (f"{__name__}.client_with_wrong_option", 'is invalid: ValueError("socket_timeout must be'),
        (f"{__name__}.no_client", "client of REDISLOCK_CLIENT is invalid: KeyError('REDIS')"),
    ],
)
def test_a_callable_that_returns_no_client_is_E003(settings, path, wrong):
    settings.REDISLOCK_CLIENT = path
    assert messages() == {}
    [(id, message)] = messages(deploy=True).items()
    assert id == "redislock.E003"
    assert wrong in message.msg
    assert locks.health().get("client").status == "failed"


def client_with_wrong_option():
    return Redis(socket_timeout="5")


def no_client():
    raise KeyError("REDIS")


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("REDISLOCK_HISTORY", -1),
        ("REDISLOCK_HISTORY", 10**30),
        ("REDISLOCK_HISTORY", True),
        ("REDISLOCK_REDACT", "password"),
        ("REDISLOCK_REDACT", [b"password"]),
        ("REDISLOCK_PREFIX", None),
        ("REDISLOCK_TIMEOUT", "soon"),
        ("REDISLOCK_TIMEOUT", -1),
        ("REDISLOCK_TIMEOUT", True),
    ],
)
def test_another_setting_that_is_wrong_is_E003(settings, setting, wrong):
    setattr(settings, setting, wrong)

    [message] = check_settings(None)

    assert message.id == "redislock.E003"
    assert setting in message.msg
    assert repr(wrong) in message.msg
    assert "use the default" in message.hint


def test_a_server_that_evicts_is_W001(settings, own_locks, own_redis):
    settings.REDISLOCK_CACHE = "own"
    assert messages(deploy=True) == {}
    own_redis.config_set("maxmemory-policy", "volatile-ttl")
    assert messages() == {}
    [(id, message)] = messages(deploy=True).items()
    assert id == "redislock.W001"
    assert "'own'" in message.msg
    assert "volatile-ttl" in message.msg


def test_an_unreachable_server_is_W002(settings, alias_on):
    alias_on("redis://127.0.0.1:1/0")
    settings.REDISLOCK_CACHE = "own"
    assert messages() == {}
    [(id, message)] = messages(deploy=True).items()
    assert id == "redislock.W002"
    assert "'own'" in message.msg


def test_the_default_cache_is_W003():
    assert set(messages(deploy=True)) == {"redislock.W003"}
    assert "clear()" in messages(deploy=True)["redislock.W003"].msg


def test_an_alias_in_the_same_database_as_another_is_W003_too(settings):
    settings.REDISLOCK_CACHE = "django_redis"
    [message] = messages(deploy=True).values()
    assert message.id == "redislock.W003"
    assert "'default'" in message.msg


@pytest.mark.parametrize("backend", [CORE, DJANGO_REDIS, "django_valkey.cache.ValkeyCache"])
def test_a_key_function_is_W004(settings, alias_on, own_server, backend):
    alias_on(own_server.url, backend=backend)
    settings.REDISLOCK_CACHE = "own"
    own = settings.CACHES["own"]
    assert messages() == {}
    default = "django.core.cache.backends.base.default_key_func"
    settings.CACHES = {**settings.CACHES, "own": own | {"KEY_FUNCTION": default}}
    assert messages() == {}
    wrong = f"{__name__}.key_of_a_tenant"
    settings.CACHES = {**settings.CACHES, "own": own | {"KEY_FUNCTION": wrong}}
    [(id, message)] = messages().items()
    assert id == "redislock.W004"
    assert "'own'" in message.msg


def key_of_a_tenant(key, key_prefix, version):
    return f"tenant:{key_prefix}:{version}:{key}"
